#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/descriptor.hpp"
#include "base/files.hpp"
#include "base/peer_file.hpp"
#include "base/process.hpp"
#include "base/text.hpp"
#include "diagnosis/processes/numbers.hpp"
#include "diagnosis/stacks.hpp"

namespace vccl {
namespace {

using base::FileDescriptor;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostBytes = 1 << 20;  // of an answer
constexpr auto kBetweenLooks = std::chrono::milliseconds(2);

/// Says what a thread does with the signal.
enum class Handling { none, blocks, takes };

/// Returns `takes` if the process has a handler of the signal, and the thread does not block it.
Handling handling_of(pid_t pid, pid_t thread) {
  std::ifstream file(base::text("/proc/", pid, "/task/", thread, "/status"));
  bool caught = false, blocked = true;
  const auto has_signal = [](std::string_view line) {
    std::uint64_t mask = 0;
    line.remove_prefix(std::min(line.find_first_not_of(" \t", line.find(':') + 1), line.size()));
    return read_number(line, mask, 16) && ((mask >> (kStackSignal - 1)) & 1) != 0;
  };
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("SigCgt:")) caught = has_signal(line);
    if (line.starts_with("SigBlk:")) blocked = has_signal(line);
  }
  return !caught ? Handling::none : blocked ? Handling::blocks : Handling::takes;
}

/// Returns whether the process appends to the file. Only the owner of stack memory does so: a process that
/// asks others has their memory open, too.
bool appends(pid_t pid, const char* descriptor) {
  std::ifstream file(base::text("/proc/", pid, "/fdinfo/", descriptor));
  for (std::string word; file >> word;) {
    int flags = 0;
    if (word == "flags:") return file >> std::oct >> flags && (flags & O_APPEND) != 0;
  }
  return false;
}

/// Opens the memory to which the process writes its stacks. The result is empty if it has none.
FileDescriptor open_stack_memory(pid_t pid) {
  FileDescriptor found;
  const std::string begin = base::text("/memfd:", kStackMemoryName);
  base::for_each_entry(base::text("/proc/", pid, "/fd").c_str(), [&](int folder, const char* name) {
    std::array<char, 128> target;
    const auto length = ::readlinkat(folder, name, target.data(), target.size());
    if (length < 0 || !std::string_view(target.data(), static_cast<std::size_t>(length)).starts_with(begin))
      return;
    if (!appends(pid, name)) return;
    found = FileDescriptor(::openat(folder, name, O_RDWR | O_NONBLOCK | O_CLOEXEC));
  });
  return found;
}

/// Returns the number of the process's thread that is to get the signal, or 0 if there is none. That is the
/// oldest with its name: a thread that it starts has the same name for the moment until it takes its own.
pid_t stack_thread_of(pid_t pid) {
  const std::string folder = base::text("/proc/", pid, "/task");
  std::pair<std::uint64_t, pid_t> oldest{};  // when it was started, and its number
  base::for_each_entry(folder.c_str(), [&](int, const char* name) {
    const auto number = base::process_number(name);
    if (!number || base::first_line(base::text(folder, '/', *number, "/comm")) != kStackThread) return;
    const base::ProcessStatus status = base::status_of(*number);
    if (status.state == 'X') return;  // it has ended meanwhile
    const std::pair found(status.start, *number);
    if (oldest.second == 0 || found < oldest) oldest = found;
  });
  return oldest.second;
}

std::string content_of(int file) {
  struct stat status;
  if (::fstat(file, &status) != 0 || status.st_size <= 0) return {};
  std::string text(std::min<std::size_t>(static_cast<std::size_t>(status.st_size), kMostBytes), '\0');
  const auto length = ::pread(file, text.data(), text.size(), 0);
  text.resize(length < 0 ? 0 : static_cast<std::size_t>(length));
  return text;
}

/// A request for the stacks of one process.
class Request {
 public:
  explicit Request(pid_t pid) : pid_(pid), memory_(open_stack_memory(pid)), thread_(stack_thread_of(pid)) {
    if (!memory_ || thread_ == 0) step_ = Step::over;
  }

  /// Goes on with the request. Returns whether it is over.
  bool poll() {
    if (step_ == Step::signal && !begin()) return false;
    if (step_ == Step::lock) send();
    if (step_ == Step::answer) read();
    return step_ == Step::over;
  }

  std::optional<Stacks> take() { return std::move(answer_); }

 private:
  enum class Step { signal, lock, answer, over };

  /// Returns false if the thread is to be looked at again: while it handles the signal of an earlier request,
  /// it blocks further ones.
  bool begin() {
    const Handling handling = handling_of(pid_, thread_);
    if (handling == Handling::blocks) return false;
    step_ = handling == Handling::takes && is_usable() ? Step::lock : Step::over;
    return true;
  }

  bool is_usable() const {
    try {
      base::check_memory_kind(memory_.get());
      return true;
    } catch (const std::runtime_error&) {
      return false;
    }
  }

  /// Sends the signal if nobody else is asking the process.
  void send() {
    if (::flock(memory_.get(), LOCK_EX | LOCK_NB) != 0) return;
    // The process appends, so its next answer begins at the start again. An older answer that comes late is
    // as good as the one that was asked for.
    const bool sent =
        ::ftruncate(memory_.get(), 0) == 0 && ::syscall(SYS_tgkill, pid_, thread_, kStackSignal) == 0;
    step_ = sent ? Step::answer : Step::over;
  }

  void read() {
    answer_ = parse_stacks(content_of(memory_.get()));
    if (!answer_) return;
    step_ = Step::over;
    memory_ = FileDescriptor();  // releases the lock, for others that ask
  }

  pid_t pid_;
  FileDescriptor memory_;
  pid_t thread_;
  Step step_ = Step::signal;
  std::optional<Stacks> answer_;
};

}  // namespace

std::vector<std::optional<Stacks>> ask_for_stacks(const std::vector<pid_t>& pids,
                                                  std::chrono::milliseconds patience) {
  const auto until = Clock::now() + patience;
  std::vector<Request> requests(pids.begin(), pids.end());
  while (true) {
    std::size_t over = 0;
    for (Request& request : requests) over += request.poll() ? 1 : 0;
    if (over == requests.size() || Clock::now() >= until) break;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  std::vector<std::optional<Stacks>> answers;
  for (Request& request : requests) answers.push_back(request.take());
  return answers;
}

}  // namespace vccl
