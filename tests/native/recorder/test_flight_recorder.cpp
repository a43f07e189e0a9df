// The flight recorder: what threads write is what a reader finds, also in stopped, dead and damaged
// processes.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "recorder/flight_dump.hpp"
#include "recorder/flight_reader.hpp"
#include "recorder/flight_recorder.hpp"
#include "recorder/memory/layout.hpp"
#include "tests/native/check.hpp"

using namespace vccl;

namespace {

FlightEntry entry_of(std::uint64_t sequence, const char* name = "all_reduce") {
  FlightEntry entry;
  entry.collective_sequence = sequence;
  entry.operation = sequence;
  entry.created_ns = base::monotonic_ns();
  put_text(entry.name, name);
  const std::int64_t shape[] = {static_cast<std::int64_t>(sequence), 3};
  entry.add_input(6, shape);
  entry.add_output(6, shape);
  return entry;
}

FlightGroup group_of(const char* name, std::vector<std::uint64_t> ranks = {0, 1}) {
  FlightGroup group;
  put_text(group.name, name);
  group.set_ranks(ranks);
  return group;
}

RecordedOperation begin(FlightRecorder& recorder, const RecordedGroup& group, FlightEntry entry) {
  return recorder.begin(group, {&entry, 1});
}

/// A copy of a recorder's memory that may be damaged.
struct Copy {
  explicit Copy(const FlightRecorder& recorder)
      : bytes(recorder.memory().size()),
        memory(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64}))) {
    std::memcpy(memory, recorder.memory().data(), bytes);
  }
  ~Copy() { ::operator delete(memory, std::align_val_t{64}); }
  std::atomic<std::uint64_t>& word(std::size_t i) const {
    return reinterpret_cast<std::atomic<std::uint64_t>*>(memory)[i];
  }
  std::size_t words() const { return bytes / sizeof(std::uint64_t); }
  std::span<const std::byte> span() const { return {memory, bytes}; }

  const std::size_t bytes;
  std::byte* const memory;
};

/// Starts a process that runs `body` and then waits to be ended. Returns once `body` has run.
template <class Body>
pid_t start(const Body& body) {
  int ends[2];
  CHECK(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    body();
    (void)!write(ends[1], "x", 1);
    for (;;) pause();
  }
  char byte = 0;
  CHECK(read(ends[0], &byte, 1) == 1);
  close(ends[0]);
  close(ends[1]);
  return child;
}

void end(pid_t child) {
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
}

const FoundRecorder* of_process(const std::vector<FoundRecorder>& all, pid_t pid) {
  const auto found = std::ranges::find(all, pid, &FoundRecorder::pid);
  return found == all.end() ? nullptr : &*found;
}

void check_use(const FlightSnapshot& snapshot) {
  std::size_t sum = 0;
  for (const auto& entry : snapshot.entries) {
    CHECK(entry.is_sound());
    const auto& group = snapshot.group_of(entry).group;
    sum += get_text(entry.name).size() + get_text(entry.thread_name).size() + get_text(group.name).size();
    sum +=
        static_cast<std::size_t>(group.in_job(entry.peer < 0 ? 0 : static_cast<std::uint32_t>(entry.peer)));
  }
  for (const auto& stack : snapshot.stacks) sum += stack.size();
  sum += pickle_of(snapshot, {}).size() + json_of(snapshot, {}).size();
  CHECK(sum + 1 != 0);
}

}  // namespace

TEST(calls_are_counted_for_as_long_as_the_group_lives) {
  FlightRecorder recorder({.entries = 2});
  const FlightReader reader(recorder.memory());
  const auto group = recorder.open_group(group_of("tp", {4, 6}));
  auto counted = entry_of(1);
  counted.counted = CountedCall::broadcast;
  for (int i = 0; i < 5; ++i) begin(recorder, group, counted);  // more than the ring keeps
  counted.counted = CountedCall::all_reduce;
  begin(recorder, group, counted);
  begin(recorder, group, entry_of(1));
  using Counts = std::array<std::uint64_t, kCountedCalls>;
  CHECK(reader.read().groups.at(0).progress.counts == (Counts{5, 0, 0, 0, 1}));
  recorder.open_group(group_of("dp", {4, 6}));
  CHECK(reader.read().groups.at(1).progress.counts == Counts{});
}

TEST(an_operation_is_read_in_each_of_its_states) {
  FlightRecorder recorder({.entries = 8});
  const FlightReader reader(recorder.memory());
  CHECK(reader.read().entries.empty());
  const auto group = recorder.open_group(group_of("tp", {4, 6}));
  const auto first = begin(recorder, group, entry_of(1)), second = begin(recorder, group, entry_of(2));
  recorder.started(first, 77);
  auto snapshot = reader.read();
  CHECK_EQ(snapshot.entries.size(), std::size_t{2});
  CHECK_EQ(snapshot.entries[0].started_ns, std::int64_t{77});
  CHECK_EQ(snapshot.entries[1].started_ns, std::int64_t{0});
  CHECK_EQ(get_text(snapshot.entries[0].name), std::string("all_reduce"));
  CHECK_EQ(snapshot.entries[1].sizes[0], std::int64_t{2});
  CHECK_EQ(snapshot.entries[1].sizes[3], std::int64_t{3});
  CHECK_EQ(snapshot.entries[0].thread_number, std::int32_t{gettid()});
  CHECK_EQ(get_text(snapshot.group_of(snapshot.entries[0]).group.name), std::string("tp"));
  CHECK_EQ(snapshot.group_of(snapshot.entries[0]).group.in_job(1), std::int64_t{6});

  recorder.ended(first, true, 99);
  recorder.ended(second, false, 100);
  snapshot = reader.read();
  CHECK_EQ(snapshot.entries[0].completed_ns, std::int64_t{99});
  CHECK(snapshot.entries[0].is(FlightEntry::kRetired));
  CHECK_EQ(snapshot.entries[1].completed_ns, std::int64_t{0});
  CHECK(snapshot.entries[1].is(FlightEntry::kRetired));
  const auto& progress = snapshot.groups.front().progress;
  CHECK_EQ(progress.enqueued[0], std::uint64_t{2});
  CHECK_EQ(progress.started[0], std::uint64_t{1});
  CHECK_EQ(progress.completed[0], std::uint64_t{1});
  CHECK_EQ(progress.enqueued[1], std::uint64_t{0});
}

TEST(the_ring_keeps_the_last_entries) {
  FlightRecorder recorder({.entries = 4});
  const FlightReader reader(recorder.memory());
  const auto group = recorder.open_group(group_of("all"));
  const auto old = begin(recorder, group, entry_of(1));
  for (std::uint64_t sequence = 2; sequence <= 6; ++sequence) begin(recorder, group, entry_of(sequence));
  recorder.ended(old, true, 5);  // its place has the entry of another operation by now
  const auto snapshot = reader.read();
  CHECK_EQ(snapshot.recorded, std::uint64_t{6});
  CHECK_EQ(snapshot.entries.size(), std::size_t{4});
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK_EQ(snapshot.entries[i].collective_sequence, i + 3);
    CHECK_EQ(snapshot.entries[i].completed_ns, std::int64_t{0});
  }
}

TEST(a_batch_has_an_entry_for_each_call) {
  FlightRecorder recorder({.entries = 8});
  const auto group = recorder.open_group(group_of("all"));
  std::vector<FlightEntry> calls{entry_of(3, "send"), entry_of(3, "recv"), entry_of(3, "coalesced")};
  for (auto& call : calls) {
    call.flags |= FlightEntry::kMessage;
    call.message_sequence = 3;
  }
  calls[2].flags |= FlightEntry::kBatch;
  const auto batch = recorder.begin(group, calls);
  recorder.started(batch, 7);
  recorder.ended(batch, true, 9);
  const auto snapshot = FlightReader(recorder.memory()).read();
  CHECK_EQ(snapshot.entries.size(), std::size_t{3});
  for (const auto& entry : snapshot.entries) {
    CHECK_EQ(entry.started_ns, std::int64_t{7});
    CHECK_EQ(entry.completed_ns, std::int64_t{9});
  }
  CHECK_EQ(snapshot.groups.front().progress.completed[1], std::uint64_t{3});
}

TEST(a_receive_from_any_rank_learns_its_sender) {
  FlightRecorder recorder({.entries = 8});
  const auto group = recorder.open_group(group_of("all"));
  auto entry = entry_of(0, "recv");
  entry.flags |= FlightEntry::kMessage;
  const auto receive = begin(recorder, group, entry);
  CHECK_EQ(FlightReader(recorder.memory()).read().entries[0].peer, std::int32_t{-1});
  recorder.ended(receive, true, 1, 5);
  const auto read = FlightReader(recorder.memory()).read().entries[0];
  CHECK_EQ(read.peer, std::int32_t{5});
  CHECK_EQ(read.thread_number, std::int32_t{gettid()});
}

TEST(what_does_not_fit_is_cut_with_a_mark) {
  FlightEntry entry;
  const std::int64_t shape[] = {2, 3, 5};
  for (int i = 0; i < 6; ++i) entry.add_input(1, shape);
  for (int i = 0; i < 6; ++i) entry.add_output(1, shape);
  CHECK(entry.is(FlightEntry::kSizesCut));
  CHECK(entry.is_sound());
  CHECK_EQ(entry.inputs, std::uint16_t{6});
  CHECK_EQ(entry.listed_inputs, std::uint8_t{6});
  CHECK_EQ(entry.outputs, std::uint16_t{6});
  CHECK_EQ(entry.listed_outputs, std::uint8_t{2});

  std::array<char, 16> text{};
  put_text(text, "sixteen letters!");
  CHECK_EQ(get_text(text), std::string("sixteen letters!"));
  put_text(text, "seventeen letters");
  CHECK_EQ(get_text(text), std::string("seventeen let..."));
  put_text(text, "tab\there");
  CHECK_EQ(get_text(text), std::string("tab here"));

  FlightGroup group;
  std::vector<std::uint64_t> ranks(10'000);
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = 5 + 3 * i;
  group.set_ranks(ranks);
  CHECK_EQ(group.known_ranks(), std::uint32_t{10'000});
  CHECK_EQ(group.in_job(9'999), std::int64_t{5 + 3 * 9'999});
  CHECK_EQ(group.in_job(10'000), std::int64_t{-1});
  std::swap(ranks[7'000], ranks[7'001]);
  group.set_ranks(ranks);
  CHECK_EQ(group.size, std::uint32_t{10'000});
  CHECK_EQ(group.known_ranks(), std::uint32_t{FlightGroup::kMostRanks});
}

TEST(places_of_destroyed_groups_are_used_again) {
  FlightRecorder recorder({.entries = 8});
  const FlightReader reader(recorder.memory());
  std::vector<RecordedGroup> groups;
  for (std::size_t i = 0; i < records::kMostGroups; ++i)
    groups.push_back(recorder.open_group(group_of(std::to_string(i).c_str())));
  const auto none = recorder.open_group(group_of("one too many"));
  CHECK(!none);
  CHECK_EQ(begin(recorder, none, entry_of(1)).count, std::uint32_t{0});
  CHECK_EQ(reader.read().unrecorded, std::uint64_t{1});
  const auto late = begin(recorder, groups[7], entry_of(1));
  recorder.close_group(groups[7]);
  CHECK_EQ(reader.read().entries.size(), std::size_t{1});
  const auto next = recorder.open_group(group_of("next"));
  CHECK(static_cast<bool>(next));
  CHECK_EQ(next.place, groups[7].place);
  recorder.ended(late, true, 1);
  const auto snapshot = reader.read();
  CHECK(snapshot.entries.empty());  // their group is not known any more
  CHECK_EQ(get_text(snapshot.groups.back().group.name), std::string("next"));
  CHECK_EQ(snapshot.groups.back().progress.completed[0], std::uint64_t{0});
}

TEST(nothing_is_recorded_without_entries) {
  FlightRecorder recorder({.entries = 0});
  CHECK(!recorder.enabled());
  CHECK(recorder.memory().empty());
  const auto group = recorder.open_group(group_of("all"));
  recorder.ended(begin(recorder, group, entry_of(1)), true, 1);
}

TEST(readers_see_whole_entries_of_threads_that_write) {
  constexpr int kThreads = 4, kReadings = 300;
  FlightRecorder recorder({.entries = 64});
  const FlightReader reader(recorder.memory());
  const auto group = recorder.open_group(group_of("all"));
  std::atomic<bool> enough{false};
  std::atomic<std::uint64_t> written{0}, last{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&] {
      for (std::uint64_t i = 0; i < 64 || !enough.load(); ++i) {
        const auto sequence = last.fetch_add(1) + 1;
        auto entry = entry_of(sequence);
        entry.created_ns = static_cast<std::int64_t>(sequence);
        const auto operation = begin(recorder, group, entry);
        recorder.started(operation, static_cast<std::int64_t>(sequence + 1));
        recorder.ended(operation, true, static_cast<std::int64_t>(sequence + 2));
        written.fetch_add(1);
      }
    });
  }
  while (written.load() == 0) std::this_thread::yield();
  for (int reading = 0; reading < kReadings; ++reading) {
    const auto snapshot = reader.read();
    CHECK_EQ(snapshot.damaged, std::uint64_t{0});
    CHECK(snapshot.entries.size() + snapshot.torn > 0);
    for (const auto& entry : snapshot.entries) {
      const auto sequence = static_cast<std::int64_t>(entry.collective_sequence);
      CHECK_EQ(entry.created_ns, sequence);
      CHECK_EQ(entry.sizes[0], sequence);
      CHECK_EQ(entry.sizes[2], sequence);
      CHECK(entry.started_ns == 0 || entry.started_ns == sequence + 1);
      CHECK(entry.completed_ns == 0 || entry.completed_ns == sequence + 2);
      CHECK(entry.completed_ns == 0 || entry.started_ns != 0);
      CHECK_EQ(entry.completed_ns != 0, entry.is(FlightEntry::kRetired));
    }
  }
  enough.store(true);
  for (auto& thread : threads) thread.join();
  const auto snapshot = reader.read();
  CHECK_EQ(snapshot.entries.size(), std::size_t{64});
  CHECK_EQ(snapshot.torn, std::uint64_t{0});
  CHECK_EQ(snapshot.recorded, written.load());
  CHECK_EQ(snapshot.groups.front().progress.completed[0], last.load());
}

TEST(calls_of_one_line_share_its_text) {
  FlightRecorder recorder({.entries = 4, .stacks = FlightRecorder::Stacks::lines});
  const FlightReader reader(recorder.memory());
  const auto group = recorder.open_group(group_of("all"));
  const auto call = [&](std::uint64_t number, std::uint16_t line) {
    auto entry = entry_of(number);
    entry.line = line;
    recorder.begin(group, {&entry, 1});
  };
  const int lines[2] = {};
  const auto first = recorder.line_of(&lines[0]), second = recorder.line_of(&lines[1]);
  CHECK(first.is_new && second.is_new && first.number != second.number);
  CHECK(!recorder.line_of(&lines[0]).is_new);
  CHECK_EQ(recorder.line_of(&lines[0]).number, first.number);
  recorder.write_line(first.number, "train\ttrain.py\t7\n");
  recorder.write_line(second.number, "x\t" + std::string(1000, 'y') + "\t7\n");
  for (const std::uint16_t line : {first.number, second.number, first.number}) call(line, line);
  call(9, 0);  // a call whose line is not known
  const auto stacks = reader.read().stacks;
  CHECK_EQ(stacks.size(), std::size_t{4});
  CHECK_EQ(stacks[0], "train\ttrain.py\t7\n");
  CHECK(stacks[1].starts_with("x\tyyy") && stacks[1].ends_with("y...") && stacks[1].size() < 512);
  CHECK_EQ(stacks[2], stacks[0]);
  CHECK_EQ(stacks[3], "");
}

TEST(lines_that_find_no_room_have_no_number) {
  FlightRecorder recorder({.entries = 4, .stacks = FlightRecorder::Stacks::lines});
  std::vector<char> lines(2 * FlightEntry::kMostLines);
  std::set<std::uint16_t> numbers;
  for (const char& line : lines) numbers.insert(recorder.line_of(&line).number);
  CHECK(numbers.contains(0));
  CHECK(numbers.size() > FlightEntry::kMostLines / 2 && numbers.size() <= FlightEntry::kMostLines + 1);
  CHECK_EQ(*numbers.rbegin(), FlightEntry::kMostLines);
}

TEST(a_hundred_thousand_damaged_records_harm_no_reader) {
  FlightRecorder recorder({.entries = 256, .stacks = FlightRecorder::Stacks::whole});
  const auto group = recorder.open_group(group_of("all"));
  for (std::uint64_t i = 1; i <= 256; ++i) {
    auto entry = entry_of(i);
    recorder.begin(group, {&entry, 1}, "train\ttrain.py\t7\n");
  }
  std::mt19937_64 random(7);
  std::uint64_t damaged = 0;
  for (int round = 0; round < 200; ++round) {
    const Copy copy(recorder);
    const FlightReader reader(copy.span());
    std::atomic<bool> over{false};
    std::thread vandal([&] {
      // Five hundred words, in entries and in groups for the most part, and in the header at times.
      const auto groups_at = records::Layout::groups_at() / 8, entries_at = records::Layout::entries_at() / 8;
      for (int i = 0; i < 500; ++i) {
        std::size_t word = entries_at + random() % (256 * 48);
        if (i % 10 == 1) word = groups_at + random() % 160;
        if (i % 50 == 2) word = random() % copy.words();
        const std::uint64_t values[] = {random(), 0, ~std::uint64_t{0},
                                        copy.word(word).load() ^ (1ULL << random() % 64)};
        copy.word(word).store(values[random() % 4]);
      }
      over.store(true);
    });
    do {
      try {
        const auto snapshot = reader.read();
        check_use(snapshot);
        damaged += snapshot.damaged + snapshot.torn;
      } catch (const FlightRefused&) {
        ++damaged;  // the header itself
      }
    } while (!over.load());
    vandal.join();
    try {
      check_use(reader.read());
    } catch (const FlightRefused&) {
      ++damaged;
    }
  }
  CHECK(damaged > 0);
}

TEST(faults_stay_when_the_process_is_described_anew) {
  FlightRecorder recorder({.entries = 2});
  const FlightReader reader(recorder.memory());
  recorder.note_fault("stall before all_reduce 1");
  recorder.note_fault("kill during all_reduce 3");
  FlightProcess process;
  process.rank = 1;
  recorder.set_process(process);
  process = reader.read_process();
  CHECK_EQ(process.rank, 1);
  CHECK_EQ(process.faults, std::uint64_t{2});
  CHECK_EQ(get_text(process.last_fault), std::string("kill during all_reduce 3"));
  const auto dump = json_of(reader.read(), {});
  CHECK(dump.find(R"("vccl_faults":{"struck":2,"last":"kill during all_reduce 3"})") != std::string::npos);
}

TEST(memory_of_another_form_is_refused) {
  FlightRecorder recorder({.entries = 8});
  Copy copy(recorder);
  const auto refused = [&] {
    try {
      (void)FlightReader(copy.span());
    } catch (const FlightRefused& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_EQ(refused(), std::string());
  copy.word(1).store(0);
  CHECK(refused().find("version 0") != std::string::npos);
  copy.word(1).store(records::kLayoutVersion);
  copy.word(5).store(9'000'000);
  CHECK(refused().find("lengths") != std::string::npos);
  copy.word(5).store(8);
  copy.word(0).store(1);
  CHECK(refused().find("does not begin") != std::string::npos);
  CHECK_THROWS(FlightReader(copy.span().first(64)), FlightRefused);
  const base::FileDescriptor plain(memfd_create("plain", MFD_CLOEXEC));
  CHECK_THROWS(FlightReader::map(plain.get()), FlightRefused);
}

TEST(stopped_and_dead_processes_are_read) {
  const pid_t child = start([] {
    auto* recorder = new FlightRecorder({.entries = 8});
    FlightProcess process;
    process.rank = 3;
    put_text(process.job, "a job");
    recorder->set_process(process);
    const auto group = recorder->open_group(group_of("all"));
    begin(*recorder, group, entry_of(1));
    // Dies in a change of the second entry.
    begin(*recorder, group, entry_of(2));
    auto* memory = const_cast<std::byte*>(recorder->memory().data()) + records::Layout::entries_at();
    reinterpret_cast<records::EntrySlot*>(memory)[1].begin_change();
  });
  kill(child, SIGSTOP);
  auto all = find_flight_recorders();
  const auto* found = of_process(all, child);
  CHECK(found != nullptr);
  CHECK(found->alive);
  CHECK_EQ(found->problem, std::string());
  const auto check = [&] {
    const auto snapshot = found->reader->read();
    CHECK_EQ(snapshot.process.rank, 3);
    CHECK_EQ(snapshot.process.pid, std::int32_t{child});
    CHECK_EQ(get_text(snapshot.process.job), std::string("a job"));
    CHECK_EQ(snapshot.entries.size(), std::size_t{1});
    CHECK_EQ(snapshot.torn, std::uint64_t{1});
  };
  check();
  end(child);
  check();  // whoever has the memory open still reads it
  all.clear();
  CHECK(of_process(find_flight_recorders(), child) == nullptr);
}

TEST(the_memory_outlives_its_process_where_another_one_holds_it) {
  const pid_t child = start([] {
    auto* recorder = new FlightRecorder({.entries = 8});
    begin(*recorder, recorder->open_group(group_of("all")), entry_of(1));
  });
  base::FileDescriptor held;
  for (int number = 3; number < 64 && !held; ++number) {
    const std::string path = "/proc/" + std::to_string(child) + "/fd/" + std::to_string(number);
    char target[128] = {};
    if (readlink(path.c_str(), target, sizeof target - 1) > 0 && std::strstr(target, records::kMemoryName))
      held = base::FileDescriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  }
  CHECK(static_cast<bool>(held));
  end(child);
  const auto all = find_flight_recorders();
  const auto* found = of_process(all, child);
  CHECK(found != nullptr);
  CHECK(!found->alive);
  CHECK_EQ(found->holder, std::int32_t{getpid()});
  CHECK_EQ(found->reader->read().entries.size(), std::size_t{1});
}

TEST(a_memory_of_another_version_is_listed) {
  const pid_t child = start([] {
    auto* recorder = new FlightRecorder({.entries = 8});
    auto* words =
        reinterpret_cast<std::atomic<std::uint64_t>*>(const_cast<std::byte*>(recorder->memory().data()));
    words[1].store(records::kLayoutVersion + 1);
  });
  const auto all = find_flight_recorders();
  const auto* found = of_process(all, child);
  end(child);
  CHECK(found != nullptr);
  CHECK(found->reader == nullptr);
  CHECK_EQ(found->version, records::kLayoutVersion + 1);
  CHECK(found->problem.find("version") != std::string::npos);
}

TEST(a_forked_child_writes_nothing_into_its_parents_memory) {
  FlightRecorder recorder({.entries = 8});
  const auto group = recorder.open_group(group_of("all"));
  const auto operation = begin(recorder, group, entry_of(1));
  const pid_t child = start([&] {
    recorder.ended(operation, true, 7);
    begin(recorder, group, entry_of(2));
    recorder.close_group(group);
  });
  end(child);
  const auto snapshot = FlightReader(recorder.memory()).read();
  CHECK_EQ(snapshot.entries.size(), std::size_t{1});
  CHECK(!snapshot.entries[0].is(FlightEntry::kRetired));
  CHECK_EQ(snapshot.groups.front().group.open, std::uint32_t{1});
}

TEST_MAIN
