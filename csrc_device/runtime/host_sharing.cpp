#include "csrc_device/runtime/host_sharing.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <string_view>

#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/runtime/error.hpp"

namespace vdev {

namespace {

constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

}  // namespace

namespace detail {
std::atomic<std::size_t> least_shared{kNever};
}

namespace {

constexpr std::size_t kLeastCapacity = std::size_t{256} << 20;
constexpr int kMostGenerations = 16;   // of forks, each of which made memory of its own
constexpr int kCopyTimeout = 120'000;  // ms

// All memory that this process knows, its own last. Never destroyed: tensors outlive main(). Entries are
// written before the count, whose release store pairs with the acquire loads of those who look through them.
HostMemory* known[kMostGenerations];
std::atomic<int> count{0};
std::mutex setup;  // held while one is made, and across a fork

/// As much as the machine has, like a card; less where address space is bounded (ulimit -v).
HostMemory* make_memory() {
  std::size_t capacity = parse_environment([](const char*) -> const char* { return nullptr; }).memory;
  for (;; capacity /= 2) {
    try {
      return new HostMemory(capacity);
    } catch (const InvalidArgument&) {
      throw;
    } catch (const Error& error) {
      if (capacity / 2 < kLeastCapacity)
        throw Error(std::string("CPU memory cannot be shared, the system refuses it: ") + error.what());
    }
  }
}

// --- fork ---

// Of the fork under way; guarded by `setup`.
HostMemory* forking = nullptr;
int meeting[2] = {-1, -1};  // a pipe whose end tells the parent that the child has its copies

void close_end(int which) {
  if (meeting[which] >= 0) ::close(meeting[which]);
  meeting[which] = -1;
}

void before_fork() {
  setup.lock();
  forking = host_memory();
  if (!forking) return;
  forking->before_fork();
  if (::pipe2(meeting, O_CLOEXEC) != 0) meeting[0] = meeting[1] = -1;
}

/// Until the child has copied what the parent might change. Its death ends the wait too, and so does a fork
/// that failed: nobody has the other end then.
void wait_for_child() {
  if (meeting[0] < 0) return;
  pollfd end{meeting[0], POLLIN, 0};
  while (::poll(&end, 1, kCopyTimeout) < 0 && errno == EINTR) {
  }
}

void after_fork_in_parent() {
  if (forking) {
    close_end(1);
    wait_for_child();
    close_end(0);
    forking->after_fork();
    forking = nullptr;
  }
  setup.unlock();
}

void after_fork_in_child() {
  if (forking) {
    close_end(0);
    stop_sharing_host_memory();
    if (!forking->make_private()) {
      constexpr std::string_view kText =
          "vccl: a forked process ends at once: there is no memory for its copy of the CPU tensors that "
          "VCCL_SHARE_CPU or vccl.share_cpu_memory() keeps in shared memory. Start it with the spawn "
          "method, or make large tensors before the sharing begins.\n";
      (void)!::write(STDERR_FILENO, kText.data(), kText.size());
      ::_exit(1);
    }
    close_end(1);
    forking->after_fork();
    forking = nullptr;
  }
  setup.unlock();
}

}  // namespace

void share_host_memory(std::size_t min_bytes) {
  std::lock_guard lock(setup);
  if (!host_memory()) {
    const int number = count.load(std::memory_order_relaxed);
    if (number == kMostGenerations) throw Error("CPU memory cannot be shared: too many forks deep");
    known[number] = make_memory();
    static const bool installed =
        ::pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child) == 0;
    if (!installed) throw Error("CPU memory cannot be shared: pthread_atfork failed");
    count.store(number + 1, std::memory_order_release);
  }
  detail::least_shared.store(min_bytes, std::memory_order_relaxed);
}

void stop_sharing_host_memory() noexcept {
  detail::least_shared.store(kNever, std::memory_order_relaxed);
}

bool is_sharing_host_memory() noexcept {
  return detail::least_shared.load(std::memory_order_relaxed) != kNever;
}

HostMemory* host_memory() noexcept {
  const int number = count.load(std::memory_order_acquire);
  if (number == 0 || known[number - 1]->is_inherited()) return nullptr;
  return known[number - 1];
}

HostMemory* host_memory_of(const void* p) noexcept {
  for (int i = count.load(std::memory_order_acquire); i-- > 0;) {
    if (known[i]->contains(p)) return known[i];
  }
  return nullptr;
}

}  // namespace vdev
