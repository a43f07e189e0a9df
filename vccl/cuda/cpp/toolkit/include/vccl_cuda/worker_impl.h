// How a worker runs a block: worker.h says what the functions do.
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>

#include "vccl_cuda/worker.h"

namespace vccl_cuda VCCL_CUDA_HIDDEN {

inline void Worker::fiber_main() {
  for (;;) {
    Worker& worker = *here.worker;
    std::string thrown;
    try {
      worker.run_(worker.data_);
    } catch (const std::exception& error) {
      thrown = std::string("it threw an exception: ") + error.what();
    } catch (...) {
      thrown = "it threw an exception";
    }
    if (!thrown.empty()) worker.fail(std::move(thrown));
    worker.idle_.push(worker.self_);
    worker.leave();
  }
}

inline void Worker::leave() {
  switch_to(self_->context, main_);
}

inline void Worker::resume(Fiber* fiber) {
  self_ = fiber;
  here.thread = fiber->thread;
  switch_to(main_, fiber->context);
}

inline Fiber* Worker::idle_fiber() {
  if (Fiber* const fiber = idle_.pop()) return fiber;
  fibers_.push_back(std::make_unique<Fiber>());
  Fiber* const fiber = fibers_.back().get();
  fiber->context = fiber->stack.begin(&fiber_main);
  return fiber;
}

inline void Worker::prepare(dim3 block_size) {
  size_ = block_size;
  count_ = block_size.x * block_size.y * block_size.z;
  started_ = ended_ = waiting_ = 0;
  at_ = {0, 0, 0};
  const unsigned warps = (count_ + 31) / 32;
  std::fill_n(warps_.begin(), warps, Warp{});
  if (count_ % 32 != 0) warps_[warps - 1].gone = kAllLanes << (count_ % 32);
  at_barrier_.clear();
  if (!failed_) return;
  // What the fibers of a block that failed have on their stacks is of no use any more.
  failed_ = false;
  error_.clear();
  idle_.clear(), ready_.clear(), yielded_.clear();
  for (const auto& fiber : fibers_) {
    fiber->context = fiber->stack.begin(&fiber_main);
    fiber->wait = Wait::kNothing;
    idle_.push(fiber.get());
  }
}

inline std::string Worker::run(uint3 block, dim3 block_size, dim3 grid_size, std::size_t shared,
                               void (*run)(const void*), const void* data) {
  prepare(block_size);
  if (shared_.size() < shared + 128) shared_.resize(shared + 128);
  const auto begin = reinterpret_cast<std::uintptr_t>(shared_.data());
  void* const aligned = shared_.data() + (128 - begin % 128) % 128;
  here = Here{{}, block, block_size, grid_size, aligned, this, 0};
  run_ = run;
  data_ = data;
  while (ended_ != count_ && !failed_) {
    Fiber* next = ready_.pop();
    if (!next && started_ != count_) next = idle_fiber();
    if (!next) next = yielded_.pop();
    if (next) {
      resume(next);
    } else if (!release_active_lanes()) {
      failed_ = true;
      error_ = explain_wait();
    }
  }
  here.worker = nullptr;
  return failed_ ? error_ + ", in block " + text(block) : std::string();
}

inline void Worker::fail(std::string what) {
  failed_ = true;
  error_ = what + ", in thread " + text(here.thread);
  std::string().swap(what);  // nothing destroys the variables of this fiber
  leave();
  __builtin_unreachable();
}

inline void Worker::wait(Wait why, Site site) {
  Fiber* const self = self_;
  self->thread = here.thread;
  self->wait = why;
  self->site = site;
  ++waiting_;
  leave();
}

inline void Worker::give_way() {
  if (ready_.empty() && started_ == count_ && yielded_.empty()) return;
  self_->thread = here.thread;
  yielded_.push(self_);
  leave();
}

inline int Worker::barrier(Combined how, int predicate, Site site) {
  Fiber* const self = self_;
  self->predicate = predicate != 0;
  self->site = site;
  self->thread = here.thread;
  at_barrier_.push_back(self);
  combined_ = how;
  if (barrier_is_complete()) {
    ++waiting_;  // as for the others, which open_barrier() counts down
    open_barrier();
    // The calling thread is the last of the ready ones, so that threads go on in the order of the waiting.
    leave();
  } else {
    wait(Wait::kBarrier, site);
  }
  return self->predicate;
}

inline void Worker::open_barrier() {
  const Fiber& first = *at_barrier_.front();
  int count = 0;
  for (const Fiber* fiber : at_barrier_) {
    count += fiber->predicate;
    if (fiber->site.line == first.site.line && std::string(fiber->site.file) == first.site.file) continue;
    failed_ = true;
    error_ = "its threads wait at different barriers: thread " + text(first) + ", thread " + text(*fiber);
    return;
  }
  const int all = static_cast<int>(at_barrier_.size());
  const int result = combined_ == Combined::kCount ? count : combined_ == Combined::kAnd ? count == all : count > 0;
  for (Fiber* fiber : at_barrier_) {
    fiber->predicate = result;
    make_ready(fiber);
  }
  at_barrier_.clear();
}

inline void Worker::thread_has_gone(unsigned warp) {
  // Threads that have ended count as if they had come, as on GPUs of compute capability 7.0 and later.
  if (!at_barrier_.empty() && barrier_is_complete()) open_barrier();
  if (warps_[warp].waiting != 0) try_to_meet(warps_[warp]);
  if (failed_) leave();
}

inline void Worker::exchange(Exchange& mine, Site site) {
  Fiber* const self = self_;
  Warp& warp = warps_[self->rank / 32];
  if ((mine.mask >> self->lane() & 1) == 0)
    fail(std::string(mine.name) + " at " + site.file + ":" + std::to_string(site.line) +
         " has a mask without the calling lane");
  self->exchange = mine;
  self->site = site;
  self->thread = here.thread;
  warp.lanes[self->lane()] = self;
  warp.waiting |= 1u << self->lane();
  ++waiting_;
  self->wait = Wait::kWarp;
  meet(warp, warp.alive(mine.mask));
  leave();
  mine = self->exchange;
}

// Lets lanes meet if all of them wait with one mask.
inline bool Worker::meet(Warp& warp, unsigned lanes) {
  if ((warp.waiting & lanes) != lanes) return false;
  std::array<Value, 32> given;
  unsigned ballot = 0;
  const Fiber* const first = warp.lanes[__builtin_ctz(lanes)];
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
    const unsigned lane = __builtin_ctz(rest);
    const Fiber& fiber = *warp.lanes[lane];
    if (fiber.wait != Wait::kWarp || warp.alive(fiber.exchange.mask) != lanes) return false;
    if (fiber.exchange.call != first->exchange.call || fiber.exchange.combine != first->exchange.combine) {
      failed_ = true;
      error_ = "lanes of a warp meet in different functions: thread " + text(*first) + ", thread " + text(fiber);
      return true;
    }
    given[lane] = fiber.exchange.value;
    if (fiber.exchange.result != 0) ballot |= 1u << lane;
  }
  Value combined = given[__builtin_ctz(lanes)];
  if (first->exchange.call == WarpCall::kCombine) {
    for (unsigned rest = lanes & (lanes - 1); rest != 0; rest &= rest - 1)
      first->exchange.combine(combined, given[__builtin_ctz(rest)]);
  }
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
    const unsigned lane = __builtin_ctz(rest);
    Fiber* const fiber = warp.lanes[lane];
    Exchange& exchange = fiber->exchange;
    switch (exchange.call) {
      case WarpCall::kRead:
        // CUDA does not say what is read of a lane that has ended, takes no part or is not in the block. All bits
        // are set here, which is NaN, so that a sum with it is no wrong number that looks right.
        if (lanes >> exchange.source & 1)
          exchange.value = given[exchange.source];
        else
          std::memset(exchange.value.bytes, 0xff, sizeof exchange.value.bytes);
        break;
      case WarpCall::kBallot: exchange.result = ballot; break;
      case WarpCall::kCombine: exchange.value = combined; break;
      case WarpCall::kMatch:
        exchange.result = 0;
        for (unsigned other = lanes; other != 0; other &= other - 1) {
          const unsigned number = __builtin_ctz(other);
          if (std::memcmp(given[number].bytes, given[lane].bytes, sizeof(Value)) == 0)
            exchange.result |= 1u << number;
        }
        break;
      case WarpCall::kSync: break;
    }
    make_ready(fiber);
  }
  warp.waiting &= ~lanes;
  return true;
}

inline void Worker::try_to_meet(Warp& warp) {
  for (unsigned rest = warp.waiting; rest != 0;) {
    const Fiber& fiber = *warp.lanes[__builtin_ctz(rest)];
    rest &= rest - 1;
    if (fiber.wait != Wait::kWarp) continue;
    const unsigned lanes = warp.alive(fiber.exchange.mask);
    if (meet(warp, lanes)) rest &= ~lanes;
  }
}

// Which lanes are active together is the hardware's choice on a GPU. Here they are those of the warp that
// come to the same line before any of them goes on.
inline unsigned Worker::active_lanes(Site site) {
  Fiber* const self = self_;
  Warp& warp = warps_[self->rank / 32];
  warp.lanes[self->lane()] = self;
  warp.waiting |= 1u << self->lane();
  wait(Wait::kActive, site);
  return self->exchange.result;
}

inline bool Worker::release_active_lanes() {
  for (Warp& warp : warps_) {
    unsigned together = 0;
    const Fiber* first = nullptr;
    for (unsigned rest = warp.waiting; rest != 0; rest &= rest - 1) {
      const unsigned lane = __builtin_ctz(rest);
      const Fiber& fiber = *warp.lanes[lane];
      if (fiber.wait != Wait::kActive) continue;
      if (!first) first = &fiber;
      if (fiber.site.line == first->site.line && fiber.site.file == first->site.file) together |= 1u << lane;
    }
    if (together == 0) continue;
    for (unsigned rest = together; rest != 0; rest &= rest - 1) {
      Fiber* const fiber = warp.lanes[__builtin_ctz(rest)];
      fiber->exchange.result = together;
      make_ready(fiber);
    }
    warp.waiting &= ~together;
    return true;
  }
  return false;
}

inline std::string Worker::text(uint3 v) {
  return "(" + std::to_string(v.x) + ", " + std::to_string(v.y) + ", " + std::to_string(v.z) + ")";
}

inline std::string Worker::text(const Fiber& fiber) {
  const std::string what = fiber.wait == Wait::kWarp ? fiber.exchange.name : "a barrier";
  return text(fiber.thread) + " in " + what + " at " + fiber.site.file + ":" + std::to_string(fiber.site.line);
}

inline std::string Worker::explain_wait() const {
  std::string result = "its threads wait for each other for ever:";
  std::vector<Site> told;
  for (const auto& fiber : fibers_) {
    if (fiber->wait == Wait::kNothing) continue;
    const auto is_told = [&](const Site& site) { return site.line == fiber->site.line && site.file == fiber->site.file; };
    if (told.size() == 4 || std::any_of(told.begin(), told.end(), is_told)) continue;
    result += (told.empty() ? " thread " : ", thread ") + text(*fiber);
    told.push_back(fiber->site);
  }
  return result;
}

}  // namespace vccl_cuda
