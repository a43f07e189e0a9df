#include "csrc_pg/dumps/stack_requests.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/thread_waits.hpp"
#include "csrc_pg/dumps/dump_requests.hpp"
#include "diagnosis/stacks.hpp"

namespace vccl {
namespace {

constexpr auto kLockPatience = std::chrono::milliseconds(50);

// The handler reads these, which are set before it is installed. A forked child has its parent's until it is
// prepared itself.
std::atomic<int> stack_memory{-1};
std::atomic<pid_t> stack_owner{0};
std::atomic<const std::atomic<int>*> main_waits{nullptr};
std::atomic<pthread_t> main_thread{};
std::atomic<LockProbe> lock_probe{nullptr};

/// A line of text that is put together without functions that a signal handler may not call.
class SignalSafeLine {
 public:
  explicit SignalSafeLine(std::string_view begin) { add(begin); }
  void add(std::string_view text) {
    text = text.substr(0, line_.size() - length_);
    std::memcpy(line_.data() + length_, text.data(), text.size());
    length_ += text.size();
  }
  void add_hexadecimal(std::uint64_t number) {
    const auto end = std::to_chars(line_.data() + length_, line_.data() + line_.size(), number, 16).ptr;
    length_ = static_cast<std::size_t>(end - line_.data());
  }
  void append_to(int file) const { (void)!::write(file, line_.data(), length_); }

 private:
  std::array<char, 96> line_;
  std::size_t length_ = 0;
};

/// faulthandler calls this after it has written the stacks.
void end_stacks(int) {
  if (::getpid() != stack_owner.load(std::memory_order_relaxed)) return;
  const int before = errno;
  const auto* waits = main_waits.load(std::memory_order_relaxed);
  SignalSafeLine line("main ");
  line.add_hexadecimal(waits ? main_thread.load(std::memory_order_relaxed) : 0);
  line.add(waits && waits->load(std::memory_order_relaxed) > 0 ? " waits\n" : " goes on\n");
  line.append_to(stack_memory.load(std::memory_order_relaxed));
  wake_requests_for_stacks();
  errno = before;
}

/// Installs the handler. Returns false if the program has one of its own.
bool take_stack_signal() {
  struct sigaction action{};
  if (::sigaction(kStackSignal, nullptr, &action) != 0) return false;
  if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) return false;
  action = {};
  action.sa_handler = &end_stacks;
  action.sa_flags = SA_RESTART;
  return ::sigaction(kStackSignal, &action, nullptr) == 0;
}

void remember_main_thread() {
  if (::syscall(SYS_gettid) != ::getpid()) return;
  main_thread.store(::pthread_self(), std::memory_order_relaxed);
  main_waits.store(&base::ThreadWaits::of_this_thread(), std::memory_order_relaxed);
}

}  // namespace

int prepare_stack_answers(LockProbe probe) noexcept {
  remember_main_thread();
  if (stack_owner.load(std::memory_order_relaxed) == ::getpid()) return -1;
  const int memory = ::memfd_create(kStackMemoryName, MFD_CLOEXEC);
  if (memory < 0) return -1;
  // Answers are appended, so whoever asks can cut the last one off. A forked child has the handler of its
  // parent, with faulthandler's in front of it.
  const bool inherited = stack_memory.load(std::memory_order_relaxed) >= 0;
  if (::fcntl(memory, F_SETFL, O_APPEND) != 0 || (!inherited && !take_stack_signal())) {
    ::close(memory);
    return -1;
  }
  // The descriptor stays open for as long as the process lives, because the handler may run at any time.
  if (inherited) ::close(stack_memory.load(std::memory_order_relaxed));
  stack_memory.store(memory, std::memory_order_relaxed);
  lock_probe.store(probe, std::memory_order_relaxed);
  stack_owner.store(::getpid(), std::memory_order_relaxed);
  return memory;
}

bool main_thread_may_wait() noexcept {
  const auto* waits = main_waits.load(std::memory_order_relaxed);
  return !waits || waits->load(std::memory_order_relaxed) > 0;
}

void finish_stack_answer() noexcept {
  if (::getpid() != stack_owner.load(std::memory_order_relaxed)) return;
  const LockProbe probe = lock_probe.load(std::memory_order_relaxed);
  const SignalSafeLine line(!probe || probe(kLockPatience) ? "lock free\n" : "lock held\n");
  line.append_to(stack_memory.load(std::memory_order_relaxed));
}

}  // namespace vccl
