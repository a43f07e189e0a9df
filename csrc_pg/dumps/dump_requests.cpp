#include "csrc_pg/dumps/dump_requests.hpp"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <future>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/descriptor.hpp"
#include "base/fork.hpp"
#include "base/sealed_memory.hpp"
#include "base/signals.hpp"
#include "base/system_calls.hpp"
#include "base/text.hpp"
#include "csrc_pg/dumps/dump_files.hpp"
#include "csrc_pg/dumps/dump_pipe.hpp"
#include "csrc_pg/dumps/own_flight_recorder.hpp"
#include "csrc_pg/dumps/stack_requests.hpp"
#include "diagnosis/stacks.hpp"
#include "transport/error.hpp"

namespace vccl {
namespace {

using base::FileDescriptor;

// What is added to the event's counter.
constexpr std::uint64_t kForDump = 1, kForStacks = std::uint64_t{1} << 32;

// Signal handlers read these. They are set before the handlers are installed.
std::atomic<int> signal_event{-1};
std::atomic<pid_t> signal_owner{0};

void notify(std::uint64_t what) noexcept {
  (void)!::write(signal_event.load(std::memory_order_relaxed), &what, sizeof what);
}

void ask_for_dump(int number) {
  const int before = errno;
  if (::getpid() == signal_owner.load(std::memory_order_relaxed)) {
    notify(kForDump);
  } else {
    // A forked child has the handler and not the thread. The signal does there what it does without vccl.
    ::signal(number, SIG_DFL);
    ::raise(number);
  }
  errno = before;
}

/// Takes the signal if nobody else has.
void take_signal() {
  struct sigaction action{};
  if (::sigaction(SIGUSR1, nullptr, &action) != 0) return;
  // A forked child may have its parent's handler, which does for the child what SIG_DFL does.
  if (action.sa_handler != SIG_DFL && action.sa_handler != &ask_for_dump) return;
  action = {};
  action.sa_handler = &ask_for_dump;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR1, &action, nullptr);
}

void give_signal_back() {
  struct sigaction action{};
  if (::sigaction(SIGUSR1, nullptr, &action) != 0 || action.sa_handler != &ask_for_dump) return;
  ::signal(SIGUSR1, SIG_DFL);
}

/// Watches a folder for the file. Throws Error(invalid).
FileDescriptor watch(const std::filesystem::path& trigger) {
  FileDescriptor watched(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  const auto folder = trigger.parent_path();
  const char* where = folder.empty() ? "." : folder.c_str();
  if (!watched || ::inotify_add_watch(watched.get(), where, IN_CREATE | IN_MOVED_TO | IN_ATTRIB) < 0) {
    throw Error(ErrorCode::invalid,
                base::text("VCCL_RECORDER_TRIGGER is \"", trigger.string(), "\"; the folder ", where,
                           " cannot be watched: ", std::strerror(errno)));
  }
  return watched;
}

/// Returns whether the file has appeared or was touched. Reads all events that are there.
bool has_appeared(int watched, const std::string& name) {
  bool found = false;
  alignas(inotify_event) std::array<char, 4096> events;
  for (ssize_t length; (length = ::read(watched, events.data(), events.size())) > 0;) {
    for (ssize_t at = 0; at < length;) {
      const auto* event = reinterpret_cast<const inotify_event*>(events.data() + at);
      found = found || (event->len > 0 && name == event->name);
      at += static_cast<ssize_t>(sizeof *event + event->len);
    }
  }
  return found;
}

/// The thread, which all DumpRequests of this process share.
class Requests {
 public:
  void serve() {
    std::lock_guard lock(mutex_);
    if (users_ == 0 && !left_behind_ && own_flight_recorder().enabled()) start();
    ++users_;
  }

  void release(std::chrono::milliseconds patience) noexcept {
    std::lock_guard lock(mutex_);
    if (--users_ > 0 || !thread_.joinable()) return;
    give_signal_back();
    stopping_ = true;
    const std::uint64_t one = 1;
    (void)!::write(event_.get(), &one, sizeof one);
    if (ended_.wait_for(patience) == std::future_status::ready) {
      thread_.join();
      pipe_.reset();
      return;
    }
    // It goes on to use this object.
    left_behind_ = true;
    thread_.detach();
  }

 private:
  void start() {
    const std::filesystem::path trigger = own_recorder_variables().trigger;
    watched_ = trigger.empty() ? FileDescriptor() : watch(trigger);
    name_ = trigger.filename().string();
    if (const auto& pipe = own_recorder_variables().pipe; !pipe.empty())
      pipe_.emplace(base::text(pipe, own_flight_recorder().process().rank, ".pipe"));
    // The descriptor is kept, because a signal handler may still be about to write to it.
    if (!event_) event_ = FileDescriptor(base::make_event_counter());
    std::uint64_t of_the_last_thread;
    (void)!::read(event_.get(), &of_the_last_thread, sizeof of_the_last_thread);
    if (!event_) return;  // the process has no descriptors left, and the group's errors say so
    stopping_ = false;
    signal_event.store(event_.get(), std::memory_order_relaxed);
    signal_owner.store(::getpid(), std::memory_order_relaxed);
    const base::SignalsBlocked blocked;
    std::packaged_task<void()> task([this] { run(); });
    ended_ = task.get_future();
    thread_ = std::thread(std::move(task));
    take_signal();
  }

  void run() {
    ::pthread_setname_np(::pthread_self(), kStackThread);
    sigset_t asks_for_stacks;
    sigemptyset(&asks_for_stacks);
    sigaddset(&asks_for_stacks, kStackSignal);
    sigaddset(&asks_for_stacks, lockless_stack_signal());
    ::pthread_sigmask(SIG_UNBLOCK, &asks_for_stacks, nullptr);
    for (;;) {
      // A descriptor of -1 is passed over.
      pollfd waited[] = {{event_.get(), POLLIN, 0},
                         {watched_.get(), POLLIN, 0},
                         {pipe_ ? pipe_->descriptor() : -1, POLLIN, 0}};
      if (::poll(waited, std::size(waited), -1) < 0 && errno != EINTR) return;
      if (stopping_) return;
      std::uint64_t asked = 0;
      if (::read(event_.get(), &asked, sizeof asked) > 0) {
        if (asked >= kForStacks) answer_stack_request();
        if (asked % kForStacks != 0) write_dump("SIGUSR1");
      }
      if (watched_ && has_appeared(watched_.get(), name_)) write_dump("VCCL_RECORDER_TRIGGER");
      if (pipe_ && pipe_->take_requests()) write_dump("TORCH_NCCL_DEBUG_INFO_PIPE_FILE");
    }
  }

  std::mutex mutex_;
  int users_ = 0;
  bool left_behind_ = false;  // the thread, which did not end in time
  FileDescriptor event_, watched_;
  std::optional<DumpPipe> pipe_;
  std::string name_;
  std::atomic<bool> stopping_{false};
  std::future<void> ended_;
  std::thread thread_;
};

// Never destroyed: the thread may be left behind. A forked child has none, and gets its own with its first
// group.
Requests& requests() {
  static base::OnePerProcess<Requests> one;
  return one.get();
}

}  // namespace

DumpRequests::DumpRequests() : generation_(base::fork_generation()) {
  requests().serve();
}

void wake_requests_for_stacks() noexcept {
  if (::getpid() == signal_owner.load(std::memory_order_relaxed)) notify(kForStacks);
}

void DumpRequests::end(std::chrono::milliseconds patience) noexcept {
  if (ended_.exchange(true) || generation_ != base::fork_generation()) return;
  requests().release(std::min(patience, kPatience));
}

}  // namespace vccl
