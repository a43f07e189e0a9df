// The record of a rank in a file: what the recorder has had is in the file, and what it has lost is counted.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "recorder/flight_reader.hpp"
#include "recorder/flight_recorder.hpp"
#include "recorder/spool.hpp"
#include "recorder/spool/spool_file.hpp"
#include "tests/native/check.hpp"

using namespace vccl;
namespace files = std::filesystem;

namespace {

constexpr std::chrono::seconds kPatience{20};

/// A directory that is gone at the end.
struct Directory {
  Directory() {
    std::string name = (files::temp_directory_path() / "vccl-spool-XXXXXX").string();
    CHECK(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Directory() { files::remove_all(path); }
  files::path path;
};

SpoolSettings settings_of(const files::path& directory) {
  SpoolSettings settings;
  settings.directory = directory.string();
  settings.dtype_name = [](std::uint8_t dtype) -> const char* { return dtype == 6 ? "Float" : nullptr; };
  settings.library = "vccl test";
  settings.interval = std::chrono::milliseconds(1);
  return settings;
}

void set_rank(FlightRecorder& recorder, int rank = 0, const char* job = "a job") {
  FlightProcess process;
  process.rank = rank;
  process.size = 2;
  put_text(process.job, job);
  recorder.set_process(process);
}

RecordedGroup open_group(FlightRecorder& recorder) {
  FlightGroup group;
  put_text(group.name, "0");
  const std::uint64_t ranks[] = {0, 1};
  group.set_ranks(ranks);
  return recorder.open_group(group);
}

/// A recorder of rank 0 with one group, and a directory for its record.
struct Scene {
  explicit Scene(std::size_t entries) : recorder({.entries = entries}) {
    set_rank(recorder);
    group = open_group(recorder);
  }
  Directory directory;
  FlightRecorder recorder;
  RecordedGroup group;
};

FlightEntry entry_of(std::uint64_t sequence, std::int64_t size = 4) {
  FlightEntry entry;
  entry.collective_sequence = entry.operation = sequence;
  entry.created_ns = base::monotonic_ns();
  put_text(entry.name, "all_reduce");
  const std::int64_t shape[] = {size};
  entry.add_input(6, shape);
  entry.add_output(6, shape);
  return entry;
}

RecordedOperation begin(FlightRecorder& recorder, const RecordedGroup& group, FlightEntry entry) {
  return recorder.begin(group, {&entry, 1});
}

void play(FlightRecorder& recorder, const RecordedGroup& group, FlightEntry entry, bool succeeded = true) {
  const auto operation = begin(recorder, group, entry);
  recorder.started(operation, base::monotonic_ns());
  recorder.ended(operation, succeeded, base::monotonic_ns());
}

std::vector<std::string> lines_of(const files::path& directory, int rank = 0) {
  std::ifstream file(directory / ("rank-" + std::to_string(rank) + ".jsonl"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::size_t count(const std::vector<std::string>& lines, const std::string& part) {
  std::size_t found = 0;
  for (const auto& line : lines) found += line.find(part) != std::string::npos;
  return found;
}

}  // namespace

TEST(operations_are_in_the_file_with_their_calls_once) {
  Scene scene(64);
  auto& [directory, recorder, group] = scene;
  Spool spool(recorder, settings_of(directory.path));
  for (std::uint64_t i = 1; i <= 10; ++i) play(recorder, group, entry_of(i));
  play(recorder, group, entry_of(11, 5), false);
  recorder.close_group(group);
  spool.end(kPatience);
  const auto lines = lines_of(directory.path);
  CHECK(lines.front().find("\"vccl_record\":1") != std::string::npos);
  CHECK(lines.front().find("\"job\":\"a job\"") != std::string::npos);
  CHECK_EQ(count(lines, "\"ranks\":[0,1]"), std::size_t{1});
  CHECK_EQ(count(lines, "\"call\":"), std::size_t{2});
  CHECK_EQ(count(lines, "[\"Float\",[4]]"), std::size_t{1});
  for (int number = 0; number < 11; ++number)
    CHECK_EQ(count(lines, "[" + std::to_string(number) + "," + (number < 10 ? "1," : "2,")), std::size_t{1});
  CHECK_EQ(count(lines, ",null]"), std::size_t{1});  // the operation that has failed
  CHECK_EQ(count(lines, "[\"closed\",1]"), std::size_t{1});
  CHECK_EQ(lines.back().rfind("[\"finished\",0,", 0), std::size_t{0});
}

TEST(what_was_under_way_gets_its_end_later) {
  Scene scene(64);
  auto& [directory, recorder, group] = scene;
  SpoolFile file(recorder, settings_of(directory.path));
  const auto first = begin(recorder, group, entry_of(1));
  const auto second = begin(recorder, group, entry_of(2));
  file.turn(false);
  CHECK(file.waits());
  recorder.started(first, base::monotonic_ns());
  recorder.ended(first, true, base::monotonic_ns());
  file.turn(false);
  CHECK(file.waits());
  file.turn(true);
  file.finish();
  const auto lines = lines_of(directory.path);
  CHECK_EQ(count(lines, "[\"end\",0,"), std::size_t{1});
  CHECK_EQ(count(lines, "[\"end\",1"), std::size_t{0});  // the other one never ended
  CHECK_EQ(second.count, std::uint32_t{1});
}

TEST(an_overrun_is_counted) {
  Scene scene(8);
  auto& [directory, recorder, group] = scene;
  SpoolFile file(recorder, settings_of(directory.path));
  const auto under_way = begin(recorder, group, entry_of(1));
  file.turn(false);
  for (std::uint64_t i = 2; i <= 21; ++i) play(recorder, group, entry_of(i));
  file.turn(true);
  file.finish();
  const auto lines = lines_of(directory.path);
  CHECK_EQ(under_way.first, std::uint64_t{0});
  CHECK_EQ(count(lines, "[\"end\",0]"), std::size_t{1});       // nobody knows how it ended
  CHECK_EQ(count(lines, "[\"lost\",12,13]"), std::size_t{1});  // numbers 1 to 12
  for (int number = 13; number <= 20; ++number)
    CHECK_EQ(count(lines, "[" + std::to_string(number) + ",1,"), std::size_t{1});
}

TEST(details_are_in_the_file) {
  Scene scene(8);
  auto& [directory, recorder, group] = scene;
  Spool spool(recorder, settings_of(directory.path));
  CHECK(recorder.wants_details());
  FlightEntry entry;
  put_text(entry.name, "all_reduce_coalesced");
  FlightDetails details;
  for (std::int64_t i = 0; i < 12; ++i) {
    const std::int64_t shape[] = {i, 2};
    entry.add_input(6, shape);
    details.inputs.push_back({6, {i, 2}});
  }
  details.input_splits = {3, 0, 1};
  CHECK(entry.is(FlightEntry::kSizesCut));
  recorder.add_details(entry, details);
  entry.reduction = FlightReduction::premul_sum;
  entry.factor = 0.1;
  entry.root = 1;
  play(recorder, group, entry);
  spool.end(kPatience);
  CHECK(!recorder.wants_details());
  const auto lines = lines_of(directory.path);
  CHECK_EQ(count(lines, "[\"Float\",[11,2]]"), std::size_t{1});
  CHECK_EQ(count(lines, "\"input_splits\":[3,0,1]"), std::size_t{1});
  CHECK_EQ(count(lines, "\"cut\""), std::size_t{0});
  CHECK_EQ(count(lines, "\"reduction\":\"PREMUL_SUM\",\"factor\":\"0.10000000000000001\""), std::size_t{1});
  CHECK_EQ(count(lines, "\"root\":1"), std::size_t{1});
}

TEST(details_that_were_overwritten_are_not_read) {
  FlightRecorder recorder({.entries = 8});
  const FlightReader reader(recorder.memory());
  FlightDetails details;
  details.output_splits.assign(40'000, 7);
  FlightEntry first, last;
  recorder.add_details(first, details);
  CHECK(reader.read_details(first) == details);
  for (int i = 0; i < 3; ++i) recorder.add_details(last, details);
  CHECK(!reader.read_details(first));
  CHECK(reader.read_details(last) == details);
  FlightEntry longest;
  details.output_splits.assign(std::size_t{1} << 20, 7);
  recorder.add_details(longest, details);
  CHECK_EQ(longest.details, std::uint32_t{0});
  FlightEntry damaged = last;
  damaged.details -= 1;
  CHECK(!reader.read_details(damaged));
}

TEST(hashes_are_in_the_file) {
  Scene scene(8);
  auto& [directory, recorder, group] = scene;
  auto settings = settings_of(directory.path);
  settings.hashes = true;
  Spool spool(recorder, settings);
  CHECK(recorder.wants_hashes());
  const auto operation = begin(recorder, group, entry_of(1));
  recorder.hashed(operation.first, 0x12, 0xab);
  recorder.started(operation, base::monotonic_ns());
  recorder.ended(operation, true, base::monotonic_ns());
  spool.end(kPatience);
  CHECK(!recorder.wants_hashes());
  CHECK_EQ(count(lines_of(directory.path), "\"0000000000000012\",\"00000000000000ab\"]"), std::size_t{1});
}

TEST(a_directory_that_cannot_take_a_record_is_refused) {
  Directory directory;
  FlightRecorder recorder({.entries = 8});
  set_rank(recorder);
  const auto file = directory.path / "file";
  std::ofstream(file) << "x";
  CHECK_THROWS(Spool(recorder, settings_of(file)), SpoolRefused);
  CHECK_THROWS(Spool(recorder, settings_of(file / "below")), SpoolRefused);
  FlightRecorder off({.entries = 0});
  CHECK_THROWS(Spool(off, settings_of(directory.path)), SpoolRefused);
}

TEST(a_record_that_is_there_stays_as_it_is) {
  Scene scene(8);
  auto& [directory, recorder, group] = scene;
  {
    Spool spool(recorder, settings_of(directory.path / "new" / "folder"));
    play(recorder, group, entry_of(1));
    spool.end(kPatience);
  }
  const auto lines = lines_of(directory.path / "new" / "folder");
  Spool spool(recorder, settings_of(directory.path / "new" / "folder"));
  play(recorder, group, entry_of(2));
  spool.end(kPatience);
  CHECK(lines == lines_of(directory.path / "new" / "folder"));
}

TEST(groups_that_were_destroyed_before_are_left_out) {
  Directory directory;
  FlightRecorder recorder({.entries = 8});
  set_rank(recorder);
  recorder.close_group(open_group(recorder));
  const auto second = open_group(recorder);
  Spool spool(recorder, settings_of(directory.path));
  play(recorder, second, entry_of(1));
  recorder.close_group(second);
  recorder.close_group(open_group(recorder));
  spool.end(kPatience);
  const auto lines = lines_of(directory.path);
  CHECK_EQ(count(lines, "\"ranks\":[0,1]"), std::size_t{2});
  CHECK_EQ(count(lines, "[\"closed\",1]"), std::size_t{0});
  CHECK_EQ(count(lines, "[\"closed\",2]") + count(lines, "[\"closed\",3]"), std::size_t{2});
}

TEST(nothing_is_written_before_the_process_knows_its_job) {
  Directory directory;
  FlightRecorder recorder({.entries = 8});
  set_rank(recorder, 1, "");
  const auto group = open_group(recorder);
  SpoolFile file(recorder, settings_of(directory.path));
  play(recorder, group, entry_of(1));
  file.turn(false);
  CHECK(files::is_empty(directory.path));
  set_rank(recorder, 1, "a job");
  file.turn(false);
  CHECK_EQ(count(lines_of(directory.path, 1), "[0,1,1,"), std::size_t{1});  // and it was not lost meanwhile
}

TEST(a_full_disk_ends_the_record_at_a_whole_line) {
  Directory directory;
  const pid_t child = fork();
  if (child == 0) {
    FlightRecorder recorder({.entries = 4096});
    signal(SIGXFSZ, SIG_IGN);
    const rlimit most{4096, 4096};
    setrlimit(RLIMIT_FSIZE, &most);
    (void)!freopen("/dev/null", "w", stderr);
    set_rank(recorder);
    const auto group = open_group(recorder);
    SpoolFile file(recorder, settings_of(directory.path));
    for (int turn = 0; turn < 10; ++turn) {
      for (std::uint64_t i = 1; i <= 50; ++i) play(recorder, group, entry_of(i));
      file.turn(false);
    }
    file.finish();
    _exit(recorder.wants_details() ? 1 : 0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK_EQ(status, 0);
  std::ifstream file(directory.path / "rank-0.jsonl");
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  CHECK(!content.empty() && content.size() <= 4096);
  CHECK_EQ(content.back(), '\n');
}

TEST(threads_that_record_lose_nothing) {
  Scene scene(100'000);
  auto& [directory, recorder, group] = scene;
  Spool spool(recorder, settings_of(directory.path));
  constexpr int kThreads = 4, kEach = 2000;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&] {
      for (std::uint64_t i = 1; i <= kEach; ++i) play(recorder, group, entry_of(i, std::int64_t(i % 7)));
    });
  }
  for (auto& thread : threads) thread.join();
  spool.end(kPatience);
  const auto lines = lines_of(directory.path);
  CHECK_EQ(count(lines, "[\"lost\""), std::size_t{0});
  std::vector<bool> seen(kThreads * kEach);
  for (const auto& line : lines) {
    if (line[0] != '[' || line[1] == '"') continue;
    const auto number = std::stoul(line.substr(1));
    CHECK(!seen.at(number));
    seen[number] = true;
  }
  for (const bool each : seen) CHECK(each);
  CHECK_EQ(lines.back().rfind("[\"finished\"", 0), std::size_t{0});
}

TEST(a_forked_child_leaves_the_record_alone) {
  Scene scene(8);
  auto& [directory, recorder, group] = scene;
  Spool spool(recorder, settings_of(directory.path));
  play(recorder, group, entry_of(1));
  const pid_t child = fork();
  if (child == 0) {
    spool.end(kPatience);
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK_EQ(status, 0);
  spool.end(kPatience);
  CHECK_EQ(count(lines_of(directory.path), "[\"finished\""), std::size_t{1});
}

TEST_MAIN
