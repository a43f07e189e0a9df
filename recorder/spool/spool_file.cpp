#include "recorder/spool/spool_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/clock.hpp"
#include "base/system_calls.hpp"
#include "base/text.hpp"
#include "recorder/spool/lines.hpp"

namespace vccl {
namespace {

namespace files = std::filesystem;

// A program whose sizes change at each call has ever new calls. They are forgotten then, and described anew.
constexpr std::size_t kMostKnownCalls = 1 << 16;
constexpr std::size_t kMostLines = 1 << 20;  // bytes that are kept before they are written

std::span<const std::byte> memory_of(const FlightRecorder& recorder) {
  if (!recorder.enabled())
    throw SpoolRefused(
        "the flight recorder keeps no operations (VCCL_RECORDER_SIZE=0), so there is nothing to "
        "record");
  return recorder.memory();
}

}  // namespace

SpoolFile::SpoolFile(FlightRecorder& recorder, SpoolSettings settings)
    : recorder_(recorder),
      settings_(std::move(settings)),
      reader_(memory_of(recorder)),
      start_ns_(base::monotonic_ns()),
      next_(reader_.next_number()) {
  // These were destroyed before the record began.
  for (const auto& group : reader_.read_groups(0))
    if (group.open == 0) closed_.insert(group.serial);
  std::error_code error;
  files::create_directories(settings_.directory, error);
  if (!error && !files::is_directory(settings_.directory, error) && !error)
    error = std::make_error_code(std::errc::not_a_directory);
  if (!error && ::access(settings_.directory.c_str(), W_OK | X_OK) != 0)
    error = std::error_code(errno, std::generic_category());
  if (error)
    throw SpoolRefused(
        base::text("the directory ", settings_.directory, " cannot take a record: ", error.message()));
}

bool SpoolFile::open() {
  const auto process = recorder_.process();
  if (process.rank < 0 || get_text(process.job).empty()) return false;
  path_ = (files::path(settings_.directory) / base::text("rank-", process.rank, ".jsonl")).string();
  file_ = base::FileDescriptor(base::open_file(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0666));
  if (!file_) {
    fail(errno == EEXIST
             ? base::text(path_, " is there already, from this or another job. Name an empty directory")
             : base::text(path_, " cannot be made: ", std::strerror(errno)));
    return false;
  }
  lines_ = records::header_line(process, settings_, start_ns_);
  return true;
}

void SpoolFile::fail(const std::string& why) noexcept {
  failed_ = true;
  recorder_.want_details(false, false);
  std::fprintf(stderr, "[vccl] Communication is not recorded: %s.\n", why.c_str());
  lines_.clear();
  under_way_.clear();
}

void SpoolFile::flush() {
  std::size_t done = 0;
  while (done < lines_.size()) {
    const auto count = base::write_file(file_.get(), lines_.data() + done, lines_.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const auto why =
          base::text(path_, " cannot be written: ", std::strerror(errno), "; the record ends here");
      (void)!::ftruncate(file_.get(), written_);  // takes back the half of a line
      return fail(why);
    }
    done += static_cast<std::size_t>(count);
  }
  written_ += static_cast<std::int64_t>(lines_.size());
  lines_.clear();
}

void SpoolFile::turn(bool last) noexcept {
  if (failed_) return;
  try {
    if (!file_ && !open()) return;
    read(last);
    flush();
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

void SpoolFile::read(bool last) {
  // Entries come before their groups, so that the group of each entry is found.
  const auto news = reader_.read_from(next_, last);
  next_ = news.next;
  write_groups();
  if (news.lost > 0) {
    const auto next = news.entries.empty() ? news.next : news.entries.front().number;
    lines_ += records::lost_line(news.lost, next);
  }
  write_ends();
  for (const auto& entry : news.entries) {
    write_operation(entry);
    if (lines_.size() > kMostLines) flush();
    if (failed_) return;
  }
}

void SpoolFile::write_groups() {
  for (const auto& group : reader_.read_groups(last_group_)) {
    const bool is_new = group.serial > std::exchange(last_group_, std::max(last_group_, group.serial));
    if (is_new && !closed_.contains(group.serial)) lines_ += records::group_line(group, start_ns_);
    if (group.open == 0 && closed_.insert(group.serial).second) lines_ += records::closed_line(group.serial);
  }
}

std::uint64_t SpoolFile::call_of(const FlightEntry& entry) {
  const auto details = reader_.read_details(entry);
  auto key = records::common_part(entry);
  if (details) {
    const auto row = details->encoded();
    key.append(reinterpret_cast<const char*>(row.data()), row.size() * sizeof row[0]);
  }
  const auto found = known_calls_.find(key);
  if (found != known_calls_.end()) return found->second;
  if (known_calls_.size() >= kMostKnownCalls) known_calls_.clear();
  lines_ += records::call_line(++calls_, entry, details, settings_);
  known_calls_.emplace(std::move(key), calls_);
  return calls_;
}

void SpoolFile::write_operation(const FlightEntry& entry) {
  const auto call = call_of(entry);
  lines_ += records::operation_line(entry, call, start_ns_);
  if (!entry.is(FlightEntry::kRetired)) under_way_.push_back(entry.number);
}

void SpoolFile::write_ends() {
  std::erase_if(under_way_, [&](std::uint64_t number) {
    const auto entry = reader_.find(number);
    if (entry && !entry->is(FlightEntry::kRetired)) return false;
    // An entry that is just being changed is looked at again.
    if (!entry && reader_.next_number() - number <= reader_.length()) return false;
    lines_ += entry ? records::end_line(*entry, start_ns_) : records::unknown_end_line(number);
    return true;
  });
}

void SpoolFile::finish() noexcept {
  if (failed_ || !file_) return;
  try {
    lines_ += records::finished_line(reader_.unrecorded(), start_ns_);
    flush();
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

}  // namespace vccl
