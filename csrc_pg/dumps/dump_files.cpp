#include "csrc_pg/dumps/dump_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

#include "base/clock.hpp"
#include "base/descriptor.hpp"
#include "base/system_calls.hpp"
#include "base/text.hpp"
#include "csrc_pg/dumps/dumps.hpp"
#include "csrc_pg/dumps/own_flight_recorder.hpp"
#include "csrc_pg/dumps/registered_writer.hpp"
#include "recorder/flight_reader.hpp"

namespace vccl {
namespace {

namespace files = std::filesystem;

/// Held while dumps are written. Never destroyed, because threads may write while the process ends.
std::mutex& writing() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

/// Returns the beginning of the names of dumps where nobody has named a place. It is torch's, and its folder
/// is made.
std::string default_prefix() {
  const auto& prefix = own_recorder_variables().default_file;
  std::error_code ignored;  // writing the file fails then, and says why
  files::create_directories(files::path(prefix).parent_path(), ignored);
  return prefix;
}

/// Returns the beginning of the names of dumps: the default one, if nobody has named a place and no writer
/// takes the dump.
std::string place() {
  const auto& named = own_recorder_variables().file;
  return named.empty() && !has_registered_writer() ? default_prefix() : named;
}

/// Writes the file at once: a reader finds the old one, or all of the new one. A name that torch's analyzer
/// would take for a dump is never half written.
void write_file(const std::string& path, const std::string& content) {
  static std::atomic<unsigned> count{0};
  const auto folder = files::path(path).parent_path();
  const auto draft = (folder / base::text(".vccl-dump-", ::getpid(), "-", ++count)).string();
  const auto refuse = [&](int code) {
    std::remove(draft.c_str());
    throw std::system_error(code, std::generic_category());
  };
  base::FileDescriptor file(base::open_file(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666));
  if (!file) throw std::system_error(errno, std::generic_category());
  for (std::size_t done = 0; done < content.size();) {
    const auto count = base::write_file(file.get(), content.data() + done, content.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) refuse(errno);
    done += static_cast<std::size_t>(count);
  }
  if (::close(file.release()) != 0) refuse(errno);
  if (std::rename(draft.c_str(), path.c_str()) != 0) refuse(errno);
}

/// Writes the dump of a rank to its file, and says where it is, or why it is not there.
void write_dump_of(int rank, const std::string& prefix, const std::string& dump, const std::string& reason) {
  const auto path = base::text(prefix, rank);
  try {
    write_file(path, dump);
    std::fprintf(stderr, "[vccl] The flight recorder of rank %d was written to %s (%s).\n", rank,
                 path.c_str(), reason.c_str());
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "[vccl] The flight recorder of rank %d could not be written to %s: %s\n", rank,
                 path.c_str(), std::strerror(error.code().value()));
  }
}

void write_own(const std::string& prefix, const std::string& reason) {
  const int rank = own_flight_recorder().process().rank;
  auto dump = dump_pickle(true, true, false);
  if (!prefix.empty()) write_dump_of(rank, prefix, dump, reason);
  call_registered_writer(rank, std::move(dump));
}

bool is_fresh(const std::string& path) {
  constexpr std::time_t kSeconds = 5;
  struct stat status;
  return ::stat(path.c_str(), &status) == 0 && std::time(nullptr) - status.st_mtime < kSeconds;
}

/// Calls `take` with the recorder and the rank of each other process of the job on this host.
template <class Take>
void for_each_other(const Take& take) {
  const auto own = own_flight_recorder().process();
  const auto job = get_text(own.job);
  if (job.empty()) return;
  for (auto& found : find_flight_recorders()) {
    if (!found.reader || found.pid == own.pid) continue;
    try {
      const auto process = found.reader->read_process();
      if (get_text(process.job) == job && process.rank >= 0) take(found, process.rank);
    } catch (const FlightRefused&) {
      // Its memory was damaged meanwhile. The others are worth as much without it.
    }
  }
}

/// Writes the dumps of the job's other processes on this host. One that stands cannot do that itself.
void write_others(const std::string& prefix) {
  const int own = own_flight_recorder().process().rank;
  for_each_other([&](const FoundRecorder& found, int rank) {
    if (is_fresh(base::text(prefix, rank))) return;
    const auto snapshot = found.reader->read();
    const auto dump = pickle_of(snapshot, dump_options(get_text(snapshot.process.backend)));
    write_dump_of(rank, prefix, dump, base::text("by rank ", own, ", after a failure"));
  });
}

}  // namespace

void write_dump(const char* reason) noexcept {
  try {
    if (!own_flight_recorder().enabled()) return;
    const std::lock_guard lock(writing());
    write_own(place(), reason);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "[vccl] The flight recorder could not be written: %s\n", error.what());
  }
}

void dump_after_failure() noexcept {
  constexpr std::int64_t kBetween = 1'000'000'000;  // ns
  static std::atomic<std::int64_t> next{0};
  try {
    const auto wanted = own_recorder_variables().after_failure;
    const bool always = wanted == DumpsAfterFailure::always;
    const bool has_place = !own_recorder_variables().file.empty() || has_registered_writer();
    if (!own_flight_recorder().enabled() || wanted == DumpsAfterFailure::never || !(always || has_place))
      return;
    const auto now = base::monotonic_ns();
    auto expected = next.load();
    if (now < expected || !next.compare_exchange_strong(expected, now + kBetween)) return;
    const std::lock_guard lock(writing());
    const auto prefix = place();
    write_own(prefix, "after a failure");
    if (!prefix.empty()) write_others(prefix);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "[vccl] The flight recorder could not be written: %s\n", error.what());
  }
}

void wait_for_dump() noexcept {
  const std::lock_guard lock(writing());
}

}  // namespace vccl
