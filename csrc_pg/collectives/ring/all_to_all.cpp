// Ring all_to_all: what goes to the rank k positions to the right is passed on k times, the nearest first.
//
// All ranks send over the same distance at a time. In hop h of distance k, position p sends what position p -
// h has for position p - h + k, and receives what position p - h - 1 has for p - h - 1 + k, which in the last
// hop is itself. A rank's own chunks are posted from the window, which is the input; what is passed on goes
// through slots. As in every ring algorithm, each step sends what the step before it received.
#include <cstring>
#include <vector>

#include "csrc_pg/collectives/buffers/splits.hpp"
#include "csrc_pg/collectives/ring/chain.hpp"
#include "csrc_pg/collectives/ring/ring.hpp"
#include "csrc_pg/collectives/ring/ring_schedule.hpp"

namespace vccl {

namespace {

class RingAllToAll {
 public:
  RingAllToAll(Communicator& communicator, const Call& call)
      : communicator_(communicator),
        size_(communicator.size()),
        rank_(communicator.rank()),
        element_(size_of(call.dtype)),
        input_(static_cast<const std::byte*>(call.input)),
        output_(static_cast<std::byte*>(call.output)),
        splits_(communicator, call),
        schedule_(splits_.longest(), 1, element_, ring_block_bytes(communicator)) {
    for (int distance = 1; distance < size_; ++distance)
      for (int hop = 0; hop < distance; ++hop) steps_.push_back({distance, hop});
  }

  void run() {
    const std::size_t own = splits_.count(rank_, rank_) * element_;
    if (own > 0)
      std::memcpy(output_ + splits_.output_offset(rank_, rank_) * element_,
                  input_ + splits_.input_offset(rank_, rank_) * element_, own);
    schedule_.run(
        static_cast<int>(steps_.size()), [this](RingSchedule::Transfer transfer) { send(transfer); },
        [this](RingSchedule::Transfer transfer) { receive(transfer); });
  }

 private:
  struct Step {
    int distance, hop;
  };

  Step step(RingSchedule::Transfer transfer) const { return steps_[static_cast<std::size_t>(transfer.step)]; }
  // Returns the rank that is `offset` positions to the right of ours.
  int rank_at(int offset) const {
    return communicator_.ring_rank((communicator_.ring_position() + offset + size_) % size_);
  }

  void send(RingSchedule::Transfer transfer) {
    // What is passed on was sent when it was received.
    if (step(transfer).hop > 0) return;
    const int to = rank_at(step(transfer).distance);
    const auto [begin, count] = schedule_.block_of_chunk(transfer, splits_.count(rank_, to));
    if (count == 0) return;
    communicator_.right().post((splits_.input_offset(rank_, to) + begin) * element_, count * element_);
  }

  void receive(RingSchedule::Transfer transfer) {
    const auto [distance, hop] = step(transfer);
    const int from = rank_at(-hop - 1), to = rank_at(distance - hop - 1);
    const auto [begin, count] = schedule_.block_of_chunk(transfer, splits_.count(from, to));
    if (count == 0) return;
    auto& left = communicator_.left();
    const std::size_t bytes = count * element_;
    const std::byte* theirs = hop > 0 ? left.take_committed(bytes)
                                      : left.take((splits_.input_offset(from, to) + begin) * element_, bytes);
    if (to != rank_) return pass_on(communicator_, theirs, bytes);
    std::memcpy(output_ + (splits_.output_offset(from, to) + begin) * element_, theirs, bytes);
    left.release();
  }

  Communicator& communicator_;
  const int size_, rank_;
  const std::size_t element_;
  const std::byte* const input_;
  std::byte* const output_;
  const Splits splits_;
  const RingSchedule schedule_;
  std::vector<Step> steps_;
};

}  // namespace

void ring_all_to_all(Communicator& communicator, const Call& call) {
  RingAllToAll(communicator, call).run();
}

}  // namespace vccl
