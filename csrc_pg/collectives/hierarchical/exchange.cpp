// Exchanging: what goes to the host k places to the right is passed on k times, as in the ring all_to_all,
// and each ring takes a share of it. A host writes what is for its ranks straight into their outputs.
//
// What a host sends is read from inputs, which nobody writes to, except that gather and scatter may have the
// input and the output of one rank in the same place: then no byte moves there.
#include <cstring>

#include "csrc_pg/collectives/hierarchical/moves.hpp"

namespace vccl {

namespace {

class Exchange {
 public:
  Exchange(const HostCall& call, const std::function<Content(int, int)>& content,
           const std::function<std::size_t(int, int)>& bytes)
      : call_(call), hosts_(call.hosts()), bytes_(bytes), inside_(content(own(), own())) {
    for (int host = 0; host < hosts_.size(); ++host) {
      const bool other = host != own();
      to_.push_back(other ? content(own(), host) : Content());
      from_.push_back(other ? content(host, own()) : Content());
      for (int to = 0; to < hosts_.size(); ++to)
        if (to != host) longest_ = std::max(longest_, call.longest_share(bytes(host, to), 1));
    }
    for (int distance = 1; distance < hosts_.size(); ++distance)
      for (int hop = 0; hop < distance; ++hop) steps_.push_back({distance, hop});
  }

  void run() {
    move_round(
        call_, int(steps_.size()), longest_,
        [&](const RingSchedule& schedule, RingSchedule::Transfer transfer) { send(schedule, transfer); },
        [&](const RingSchedule& schedule, RingSchedule::Transfer transfer) { receive(schedule, transfer); },
        [&] { copy_inside(); });
  }

 private:
  struct Step {
    int distance, hop;
  };

  int own() const { return hosts_.position(); }
  Step step(RingSchedule::Transfer transfer) const { return steps_[std::size_t(transfer.step)]; }
  Chunk block(const RingSchedule& schedule, RingSchedule::Transfer transfer, int from, int to) const {
    return block_of(call_, schedule, transfer, bytes_(from, to));
  }

  void write(const HostMove& part, const std::byte* from) {
    std::byte* const to = call_.output(part.to) + part.to_at;
    if (to != from) std::memcpy(to, from, part.bytes);
  }

  /// Copies this rank's part of what goes from its host to the same one.
  void copy_inside() {
    inside_.each(
        even_chunk(inside_.bytes(), 1, call_.peers().own(), call_.ranks()),
        [&](const HostMove& part, std::size_t) { write(part, call_.input(part.from) + part.from_at); });
  }

  void send(const RingSchedule& schedule, RingSchedule::Transfer transfer) {
    // What is passed on was sent when it was received.
    if (step(transfer).hop > 0) return;
    const int to = call_.host_at(step(transfer).distance);
    send_block(hosts_, to_[std::size_t(to)], block(schedule, transfer, own(), to),
               [&](const HostMove& part) { return call_.input(part.from) + part.from_at; });
  }

  void receive(const RingSchedule& schedule, RingSchedule::Transfer transfer) {
    const auto [distance, hop] = step(transfer);
    const int from = call_.host_at(-hop - 1), to = call_.host_at(distance - hop - 1);
    const Chunk range = block(schedule, transfer, from, to);
    if (range.count == 0) return;
    const std::byte* const theirs = hosts_.left().take_committed(range.count);
    if (to != own()) {
      std::memcpy(hosts_.right().reserve(), theirs, range.count);
      hosts_.left().release();
      hosts_.right().commit(range.count);
      return;
    }
    from_[std::size_t(from)].each(
        range, [&](const HostMove& part, std::size_t offset) { write(part, theirs + offset); });
    hosts_.left().release();
  }

  const HostCall& call_;
  HostRing& hosts_;
  const std::function<std::size_t(int, int)>& bytes_;
  const Content inside_;
  std::vector<Content> to_, from_;  // by host
  std::vector<Step> steps_;
  std::size_t longest_ = 0;  // share of a ring, in bytes
};

}  // namespace

void exchange(const HostCall& call, const std::function<Content(int from, int to)>& content,
              const std::function<std::size_t(int from, int to)>& bytes) {
  Exchange(call, content, bytes).run();
}

}  // namespace vccl
