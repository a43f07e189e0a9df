// Spreading: what a host has goes once round the rings of hosts, as in the ring all_gather, and each ring
// takes a share of it. Whoever receives a block writes it to the outputs of all ranks of its host.
//
// A host's content is read from inputs, which nobody writes to, except where an input is the part of its own
// rank's output where it belongs. Each byte of an output is written once, before it is passed on from there.
// So nothing that was sent without a copy changes.
#include <cstring>

#include "csrc_pg/collectives/hierarchical/moves.hpp"

namespace vccl {

namespace {

class Spread {
 public:
  Spread(const HostCall& call, const std::function<Content(int)>& content)
      : call_(call), hosts_(call.hosts()) {
    for (int host = 0; host < hosts_.size(); ++host) {
      contents_.push_back(content(host));
      longest_ = std::max(longest_, call.longest_share(contents_.back().bytes(), 1));
    }
  }

  void run() {
    move_round(
        call_, hosts_.size() - 1, longest_,
        [&](const RingSchedule& schedule, RingSchedule::Transfer transfer) { send(schedule, transfer); },
        [&](const RingSchedule& schedule, RingSchedule::Transfer transfer) { receive(schedule, transfer); },
        [&] { copy_inside(); });
  }

 private:
  const Content& content_of(int host) const { return contents_[std::size_t(host)]; }

  Chunk block(const RingSchedule& schedule, RingSchedule::Transfer transfer, int host) const {
    return block_of(call_, schedule, transfer, content_of(host).bytes());
  }

  void copy_to_outputs(const HostMove& part, const std::byte* from) {
    const auto ranks = call_.peers().ranks();
    for (int step = 0; step < call_.ranks(); ++step) {
      std::byte* const to = call_.output(ranks[std::size_t((call_.peers().own() + step) % call_.ranks())]);
      if (to + part.to_at != from) std::memcpy(to + part.to_at, from, part.bytes);
    }
  }

  /// Copies this rank's part of its host's content to the outputs of the host.
  void copy_inside() {
    const Content& own = content_of(hosts_.position());
    own.each(even_chunk(own.bytes(), 1, call_.peers().own(), call_.ranks()),
             [&](const HostMove& part, std::size_t) {
               copy_to_outputs(part, call_.input(part.from) + part.from_at);
             });
  }

  void send(const RingSchedule& schedule, RingSchedule::Transfer transfer) {
    const int host = call_.host_at(-transfer.step);
    const bool is_own = transfer.step == 0;
    const int rank = call_.peers().ranks()[std::size_t(call_.peers().own())];
    send_block(hosts_, content_of(host), block(schedule, transfer, host), [&](const HostMove& part) {
      return is_own ? call_.input(part.from) + part.from_at : call_.output(rank) + part.to_at;
    });
  }

  void receive(const RingSchedule& schedule, RingSchedule::Transfer transfer) {
    const int host = call_.host_at(-transfer.step - 1);
    const Chunk range = block(schedule, transfer, host);
    if (range.count == 0) return;
    const std::byte* const theirs = hosts_.left().take_committed(range.count);
    content_of(host).each(
        range, [&](const HostMove& part, std::size_t offset) { copy_to_outputs(part, theirs + offset); });
    hosts_.left().release();
  }

  const HostCall& call_;
  HostRing& hosts_;
  std::vector<Content> contents_;
  std::size_t longest_ = 0;  // share of a ring, in bytes
};

}  // namespace

void spread(const HostCall& call, const std::function<Content(int host)>& content) {
  Spread(call, content).run();
}

}  // namespace vccl
