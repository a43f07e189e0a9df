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

#include "base/text.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/memory/memory_limit.hpp"

namespace vdev {

namespace {

constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

}  // namespace

namespace detail {
std::atomic<std::size_t> least_shared{kNever};
}

namespace {

constexpr std::size_t kLeastCapacity = std::size_t{256} << 20;
constexpr int kMostGenerations = 16;   // nested forks, each of which made memory of its own
constexpr int kCopyTimeout = 120'000;  // ms

// All memory that this process knows, with its own last. It is never destroyed, because tensors outlive
// main(). An entry is written before the count. The count's release store pairs with the acquire loads of the
// functions that search the entries.
HostMemory* known[kMostGenerations];
std::atomic<int> count{0};
std::mutex setup;  // held while memory is made, and across a fork

/// Makes memory with the capacity of the machine's memory, like a card, or with less if the address space is
/// limited (ulimit -v).
HostMemory* make_memory() {
  std::size_t capacity = usable_memory();
  for (;; capacity /= 2) {
    try {
      return new HostMemory(capacity);
    } catch (const InvalidArgument&) {
      throw;
    } catch (const CardError& error) {
      if (capacity / 2 < kLeastCapacity)
        throw CardError(base::text("CPU memory cannot be shared, the system refuses it: ", error.what()));
    }
  }
}

// --- fork ---

// State of the fork under way; guarded by `setup`.
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

/// Blocks until the child has copied what the parent might change, or until kCopyTimeout. The wait also ends
/// if the child dies or the fork fails, because no process has the other end of the pipe then.
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
    if (number == kMostGenerations) {
      throw CardError(base::text("CPU memory cannot be shared: this process is a fork of more than ",
                                 kMostGenerations,
                                 " processes in a row that share theirs; start it with the spawn method"));
    }
    known[number] = make_memory();
    static const bool installed =
        ::pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child) == 0;
    if (!installed) throw CardError("CPU memory cannot be shared: pthread_atfork failed");
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
