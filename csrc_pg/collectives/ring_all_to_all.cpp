// Ring all_to_all: what goes to the rank k places to the right is passed on k times; the nearest first.
//
// All ranks send over the same distance at a time: in hop h of distance k position p sends what position p -
// h has for position p - h + k, and receives what position p - h - 1 has for p - h - 1 + k, which in the last
// hop is itself. A rank's own parts are posted from the window, which is the input; what is passed on
// travels in slots. As in every ring algorithm, what a step received the next one sends.
#include <cstring>
#include <vector>

#include "csrc_pg/collectives/algorithm.hpp"
#include "csrc_pg/collectives/ring_chain.hpp"
#include "csrc_pg/collectives/ring_schedule.hpp"
#include "csrc_pg/collectives/splits.hpp"

namespace vccl {

namespace {

constexpr std::size_t kBlockBytes = 128 * 1024;

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
        schedule_(splits_.longest(), 1, element_, kBlockBytes) {
    for (int distance = 1; distance < size_; ++distance)
      for (int hop = 0; hop < distance; ++hop) steps_.push_back({distance, hop});
  }

  void run() {
    const std::size_t own = splits_.count(rank_, rank_) * element_;
    if (own > 0)
      std::memcpy(output_ + splits_.place_in_output(rank_, rank_) * element_,
                  input_ + splits_.place_in_input(rank_, rank_) * element_, own);
    schedule_.run(
        static_cast<int>(steps_.size()), [this](RingSchedule::Turn turn) { send(turn); },
        [this](RingSchedule::Turn turn) { receive(turn); });
  }

 private:
  struct Step {
    int distance, hop;
  };

  Step step(RingSchedule::Turn turn) const { return steps_[static_cast<std::size_t>(turn.step)]; }
  // The rank at a position relative to ours.
  int rank_at(int offset) const {
    return communicator_.ring_rank((communicator_.ring_position() + offset + size_) % size_);
  }

  void send(RingSchedule::Turn turn) {
    // What is passed on left at once.
    if (step(turn).hop > 0) return;
    const int to = rank_at(step(turn).distance);
    const auto [begin, count] = schedule_.range_in_part(turn, splits_.count(rank_, to));
    if (count == 0) return;
    communicator_.right().post((splits_.place_in_input(rank_, to) + begin) * element_, count * element_);
  }

  void receive(RingSchedule::Turn turn) {
    const auto [distance, hop] = step(turn);
    const int from = rank_at(-hop - 1), to = rank_at(distance - hop - 1);
    const auto [begin, count] = schedule_.range_in_part(turn, splits_.count(from, to));
    if (count == 0) return;
    auto& left = communicator_.left();
    const std::size_t bytes = count * element_;
    const std::byte* theirs = hop > 0
                                  ? left.take_committed(bytes)
                                  : left.take((splits_.place_in_input(from, to) + begin) * element_, bytes);
    if (to != rank_) return pass_on(communicator_, theirs, bytes);
    std::memcpy(output_ + (splits_.place_in_output(from, to) + begin) * element_, theirs, bytes);
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
