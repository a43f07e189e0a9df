// Ring all_reduce: a reduce-scatter and an all-gather around the same ring.
//
// Position p of n sends chunk p - s in step s and receives chunk p - s - 1. In the first n - 1 steps it
// receives a partial result, to which it adds its own elements; after them position p holds the result of
// chunk p + 1. In the other n - 1 steps results are copied. Every result is computed once, along one fixed
// chain of ranks, so the bits are the same on every rank and from run to run.
//
// Nothing is overwritten before the right neighbour has read it, though posting does not copy. The reason is
// this. Position p writes a chunk at most three times: (a) its own elements of chunk p, copied from the
// input, before it posts them; (b) its partial result or result of chunk c, in step s, before it posts it;
// (c) the result of a chunk c that it receives in the second half. Only (c) writes what was posted before, in
// step s = p - c of the first half. That result was computed at the end of the chain c, c + 1, ..., p, p + 1,
// ..., c - 1, which goes through the right neighbour p + 1. The neighbour read our block in order to pass its
// sum on, and the result, block by block, comes after that. The end of the chain posts its result and not a
// partial result, and does not receive that chunk again.
#include <cstring>

#include "base/past_caches.hpp"
#include "csrc_pg/collectives/kernels/many_reduction.hpp"
#include "csrc_pg/collectives/ring/chain_reduction.hpp"
#include "csrc_pg/collectives/ring/ring.hpp"
#include "csrc_pg/collectives/ring/ring_schedule.hpp"

namespace vccl {

namespace {

class RingAllReduce {
 public:
  RingAllReduce(Communicator& communicator, const Call& call)
      : right_(communicator.right()),
        left_(communicator.left()),
        size_(communicator.size()),
        position_(communicator.ring_position()),
        element_(size_of(call.dtype)),
        input_(static_cast<const std::byte*>(call.input)),
        output_(static_cast<std::byte*>(call.output)),
        chain_(communicator, call, Partials::in_window),
        schedule_(call.count, size_, element_, chain_.block_bytes(ring_block_bytes(communicator))) {}

  void run() {
    schedule_.run(
        2 * (size_ - 1), [this](RingSchedule::Transfer transfer) { send(transfer); },
        [this](RingSchedule::Transfer transfer) {
          transfer.step < size_ - 1 ? reduce(transfer) : copy(transfer);
        });
  }

 private:
  RingSchedule::Block block(RingSchedule::Transfer transfer, int behind) const {
    const int chunk = (position_ - transfer.step - behind + 2 * size_) % size_;
    return schedule_.block(transfer.pass, chunk, transfer.block);
  }

  void send(RingSchedule::Transfer transfer) {
    const auto [begin, count] = block(transfer, 0);
    if (count == 0) return;
    const std::size_t offset = begin * element_, bytes = count * element_;
    if (transfer.step == 0 && input_ != output_) std::memcpy(output_ + offset, input_ + offset, bytes);
    if (transfer.step == 0)
      chain_.begin(offset, output_ + offset, count);
    else if (transfer.step >= size_ - 1 || !chain_.sends_partials())
      right_.post(offset, bytes);
  }

  void reduce(RingSchedule::Transfer transfer) {
    const auto [begin, count] = block(transfer, 1);
    if (count == 0) return;
    const std::size_t offset = begin * element_;
    chain_.add(offset, input_ + offset, output_ + offset, count, transfer.step == 0,
               transfer.step == size_ - 2);
  }

  void copy(RingSchedule::Transfer transfer) {
    const auto [begin, count] = block(transfer, 1);
    if (count == 0) return;
    const std::size_t offset = begin * element_, bytes = count * element_;
    const std::byte* theirs = left_.take(offset, bytes);
    // The right neighbour reads all but the last step's blocks next, so those should stay in the cache.
    if (transfer.step == 2 * size_ - 3)
      base::copy_past_caches(output_ + offset, theirs, bytes);
    else
      std::memcpy(output_ + offset, theirs, bytes);
    left_.release();
  }

  Outbox& right_;
  Inbox& left_;
  const int size_, position_;
  const std::size_t element_;
  const std::byte* const input_;
  std::byte* const output_;
  ChainReduction chain_;
  const RingSchedule schedule_;
};

}  // namespace

void ring_all_reduce(Communicator& communicator, const Call& call) {
  if (call.count == 0) return;
  if (communicator.size() > 1)
    RingAllReduce(communicator, call).run();
  else
    reduce_alone(call, call.count, call.input, call.output);
}

}  // namespace vccl
