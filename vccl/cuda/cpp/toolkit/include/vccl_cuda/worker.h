// Runs the threads of a block on one thread of the host, one after the other.
//
// A thread that waits for nobody is a turn of a loop. The loop runs on a stack of its own, a fiber. Where a
// thread has to wait for others (at a barrier, or for its warp), its fiber is left as it stands, and the
// next fiber goes on with the loop. So a block needs as many fibers as threads wait at the same time, and
// nothing has to be known of a kernel before it runs.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "vccl_cuda/fiber.h"
#include "vccl_cuda/thread.h"

namespace vccl_cuda VCCL_CUDA_HIDDEN {

inline constexpr unsigned kMostThreads = 1024;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// What a thread of a block waits for.
enum class Wait : unsigned char { kNothing, kBarrier, kWarp, kActive };

// The functions of a warp, by what every lane gets: a value of another lane, the lanes whose value is not
// zero, the lanes that have the same value, or all values combined.
enum class WarpCall : unsigned char { kRead, kBallot, kMatch, kCombine, kSync };

struct Value {
  alignas(16) unsigned char bytes[16];
};

// What a lane gives to a function of its warp, and gets from it.
struct Exchange {
  WarpCall call{};
  unsigned mask = 0;    // the lanes that take part
  int source = 0;       // kRead: the lane to read
  unsigned result = 0;  // kBallot, kMatch
  Value value{};        // what the lane gives, and gets in kRead and kCombine
  void (*combine)(Value& into, const Value& value) = nullptr;
  const char* name = "";
};

struct Fiber {
  Stack stack;
  Context context;
  Fiber* next = nullptr;  // in a list of the worker
  uint3 thread{};
  unsigned rank = 0;  // of the thread in its block
  Wait wait = Wait::kNothing;
  Site site;
  int predicate = 0;  // at a barrier: what it gives, and what it gets
  Exchange exchange;

  unsigned lane() const { return rank % 32; }
};

// Fibers in the order in which they came.
class FiberList {
 public:
  bool empty() const { return first_ == nullptr; }
  void push(Fiber* fiber) {
    fiber->next = nullptr;
    (first_ ? last_->next : first_) = fiber;
    last_ = fiber;
  }
  Fiber* pop() {
    Fiber* const fiber = first_;
    if (fiber) first_ = fiber->next;
    return fiber;
  }
  void clear() { first_ = nullptr; }

 private:
  Fiber* first_ = nullptr;
  Fiber* last_ = nullptr;
};

struct Warp {
  std::array<Fiber*, 32> lanes{};  // those that wait in a function of the warp
  unsigned waiting = 0, gone = 0;  // lanes that wait, and lanes that have ended or never were

  unsigned alive(unsigned mask) const { return mask & ~gone; }
};

// How a barrier combines what the threads give.
enum class Combined : unsigned char { kCount, kAnd, kOr };

class Worker {
 public:
  // Returns the worker of the calling thread of the host. Its stacks stay for further kernels.
  static Worker& of_thread() {
    static thread_local Worker worker;
    return worker;
  }

  // Runs the block. `run(data)` runs threads, as run_threads() does. Returns what went wrong, or nothing.
  std::string run(uint3 block, dim3 block_size, dim3 grid_size, std::size_t shared, void (*run)(const void*),
                  const void* data);

  // Begins the next thread of the block on the calling fiber. Returns false if there is none, or if another
  // fiber is to go on first.
  bool next_thread() {
    if (started_ == count_ || !ready_.empty()) return false;
    uint3& at = here.thread;
    if (started_ == 0) {
      at = {0, 0, 0};
    } else if (++at_.x != size_.x) {
      at = at_;
    } else {
      at_.x = 0;
      if (++at_.y == size_.y) at_.y = 0, ++at_.z;
      at = at_;
    }
    self_->rank = started_++;
    return true;
  }
  // Ends the thread that next_thread() has begun.
  void end_thread() {
    ++ended_;
    warps_[self_->rank / 32].gone |= 1u << self_->lane();
    if (waiting_ != 0) [[unlikely]]
      thread_has_gone(self_->rank / 32);
  }

  // What the functions of kernels call, on a fiber.
  int barrier(Combined how, int predicate, Site site);
  void exchange(Exchange& mine, Site site);
  unsigned active_lanes(Site site);
  // Lets the other threads of the block go on.
  void give_way();
  [[noreturn]] void fail(std::string what);
  unsigned rank() const { return self_->rank; }

 private:
  static void fiber_main();
  void prepare(dim3 block_size);
  Fiber* idle_fiber();
  void resume(Fiber* fiber);
  void leave();
  void wait(Wait why, Site site);
  void make_ready(Fiber* fiber) {
    fiber->wait = Wait::kNothing;
    --waiting_;
    ready_.push(fiber);
  }
  void thread_has_gone(unsigned warp);
  bool barrier_is_complete() const { return at_barrier_.size() == count_ - ended_; }
  void open_barrier();
  bool meet(Warp& warp, unsigned lanes);
  void try_to_meet(Warp& warp);
  bool release_active_lanes();
  std::string explain_wait() const;
  static std::string text(uint3 v);
  static std::string text(const Fiber& fiber);

  Context main_{};
  std::vector<std::unique_ptr<Fiber>> fibers_;
  FiberList idle_, ready_, yielded_;
  Fiber* self_ = nullptr;
  void (*run_)(const void*) = nullptr;
  const void* data_ = nullptr;
  std::vector<unsigned char> shared_;
  std::string error_;
  bool failed_ = false;

  dim3 size_;
  uint3 at_{};  // the thread that was begun last
  unsigned count_ = 0, started_ = 0, ended_ = 0, waiting_ = 0;
  std::array<Warp, kMostThreads / 32> warps_;
  std::vector<Fiber*> at_barrier_;
  Combined combined_{};
};

// Runs threads of the block on the calling fiber, until there is none left or others are to go on first.
template <class Body>
void run_threads(const Body& body) {
  Worker& worker = *here.worker;
  while (worker.next_thread()) {
    body();
    worker.end_thread();
  }
}

}  // namespace vccl_cuda

#include "vccl_cuda/worker_impl.h"
