// Finds the flight recorders of the user's processes.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "base/files.hpp"
#include "base/process.hpp"
#include "base/text.hpp"
#include "recorder/flight_reader.hpp"
#include "recorder/memory/layout.hpp"

namespace vccl {
namespace {

using base::FileDescriptor;
using records::Header;

bool leads_to_recorder(int folder, const char* name) {
  constexpr std::string_view kBegin = "/memfd:";
  char target[128];
  const auto length = ::readlinkat(folder, name, target, sizeof target);
  if (length < 0) return false;
  const std::string_view text(target, static_cast<std::size_t>(length));
  return text.starts_with(kBegin) && text.substr(kBegin.size()).starts_with(records::kMemoryName);
}

/// Reads those words of the header that every version of the layout has.
void read_header(int file, FoundRecorder& found) {
  std::uint64_t words[4]{};
  if (::pread(file, words, sizeof words, 0) != sizeof words || words[0] != records::kMagic) return;
  found.version = words[1];
  found.pid = static_cast<std::int32_t>(words[2]);
  found.alive = words[3] != 0 && base::birth_of(found.pid) == words[3];
}

void open_recorder(int folder, const char* name, pid_t holder, std::vector<FoundRecorder>& all) {
  FoundRecorder found;
  found.holder = holder;
  try {
    // The file is examined through O_PATH first, because opening another kind of file may block.
    const FileDescriptor path(::openat(folder, name, O_PATH | O_CLOEXEC));
    if (!path) return;
    found.file = base::identify_file(path.get());
    const auto same = [&](const FoundRecorder& other) { return other.file == found.file; };
    if (std::ranges::any_of(all, same)) return;
    base::check_memory_kind(path.get());
    FileDescriptor file(
        ::open(base::text("/proc/self/fd/", path.get()).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (!file) return;
    read_header(file.get(), found);
    found.reader = FlightReader::map(file.get());
    found.descriptor = std::move(file);
  } catch (const std::runtime_error& error) {  // FlightRefused, FileRefused, SystemError
    found.problem = error.what();
  }
  all.push_back(std::move(found));
}

}  // namespace

std::vector<FoundRecorder> find_flight_recorders() {
  std::vector<FoundRecorder> all;
  base::for_each_entry("/proc", [&](int proc, const char* name) {
    const auto pid = base::process_number(name);
    struct stat status;
    if (!pid || ::fstatat(proc, name, &status, 0) != 0 || status.st_uid != ::geteuid()) return;
    base::for_each_entry(base::text("/proc/", *pid, "/fd").c_str(), [&](int folder, const char* descriptor) {
      if (leads_to_recorder(folder, descriptor)) open_recorder(folder, descriptor, *pid, all);
    });
  });
  return all;
}

}  // namespace vccl
