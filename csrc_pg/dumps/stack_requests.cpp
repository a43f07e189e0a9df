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
#include <exception>
#include <string>

#include "base/system_calls.hpp"
#include "base/text.hpp"
#include "base/thread_waits.hpp"
#include "csrc_pg/dumps/dump_requests.hpp"
#include "diagnosis/stacks.hpp"

namespace vccl {
namespace {

constexpr auto kLockPatience = std::chrono::milliseconds(200);

// The handler of kStackSignal reads the owner, which is set before the handler is installed. A forked child
// has its parent's values until it is prepared itself.
std::atomic<pid_t> stack_owner{0};
std::atomic<int> stack_memory{-1};
std::atomic<const std::atomic<int>*> main_waits{nullptr};
std::atomic<pthread_t> main_thread{};
std::atomic<StackReader> reader{nullptr};

void pass_request_on(int) {
  const int before = errno;
  if (::getpid() == stack_owner.load(std::memory_order_relaxed)) wake_requests_for_stacks();
  errno = before;
}

bool is_free(int signal) {
  struct sigaction action{};
  return ::sigaction(signal, nullptr, &action) == 0 &&
         (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN);
}

/// Installs the handler of the request. Returns false if the program uses one of the two signals.
bool take_signals() {
  if (!is_free(kStackSignal) || !is_free(lockless_stack_signal())) return false;
  struct sigaction action{};
  action.sa_handler = &pass_request_on;
  action.sa_flags = SA_RESTART;
  return ::sigaction(kStackSignal, &action, nullptr) == 0;
}

void append(const std::string& text) {
  (void)!::write(stack_memory.load(std::memory_order_relaxed), text.data(), text.size());
}

/// Returns the text of a number in hexadecimal.
std::string hexadecimal(std::uint64_t number) {
  std::array<char, 16> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number, 16).ptr;
  return {digits.data(), end};
}

void remember_main_thread() {
  if (::syscall(SYS_gettid) != ::getpid()) return;
  main_thread.store(::pthread_self(), std::memory_order_relaxed);
  main_waits.store(&base::ThreadWaits::of_this_thread(), std::memory_order_relaxed);
}

}  // namespace

int lockless_stack_signal() noexcept {
  // A real-time signal, since nothing is sent to other processes: the thread raises it for itself.
  return SIGRTMAX;
}

int prepare_stack_answers(StackReader read) noexcept {
  remember_main_thread();
  if (stack_owner.load(std::memory_order_relaxed) == ::getpid()) return -1;
  const int memory = base::make_memory(kStackMemoryName, 0);
  if (memory < 0) return -1;
  // Answers are appended, so whoever asks can cut the last one off. A forked child has the handlers of its
  // parent.
  const bool inherited = stack_memory.load(std::memory_order_relaxed) >= 0;
  if (::fcntl(memory, F_SETFL, O_APPEND) != 0 || (!inherited && !take_signals())) {
    ::close(memory);
    return -1;
  }
  // The descriptor stays open for as long as the process lives, because faulthandler has its number.
  if (inherited) ::close(stack_memory.load(std::memory_order_relaxed));
  stack_memory.store(memory, std::memory_order_relaxed);
  reader.store(read, std::memory_order_relaxed);
  stack_owner.store(::getpid(), std::memory_order_relaxed);
  return memory;
}

bool main_thread_may_wait() noexcept {
  const auto* waits = main_waits.load(std::memory_order_relaxed);
  return !waits || waits->load(std::memory_order_relaxed) > 0;
}

void answer_stack_request() noexcept {
  if (::getpid() != stack_owner.load(std::memory_order_relaxed)) return;
  try {
    const auto text = reader.load(std::memory_order_relaxed)(kLockPatience);
    if (text)
      append(*text);
    else
      ::pthread_kill(::pthread_self(), lockless_stack_signal());  // the handler has run when this returns
    const auto* waits = main_waits.load(std::memory_order_relaxed);
    const auto thread = waits ? static_cast<std::uint64_t>(main_thread.load(std::memory_order_relaxed)) : 0;
    const bool waiting = waits && waits->load(std::memory_order_relaxed) > 0;
    append(base::text("main ", hexadecimal(thread), waiting ? " waits\n" : " goes on\n",
                      text ? "lock free\n" : "lock held\n"));
  } catch (const std::exception&) {
    // Whoever has asked waits in vain.
  }
}

}  // namespace vccl
