// The hierarchical reductions: chains of hosts, as in the ring reduce_scatter. The results of each host's
// part of the elements are added up along the ring of hosts, beginning with the host to the right of it, and
// each ring of hosts takes a share. all_reduce then sends the results round once more.
//
// So each byte of an all_reduce goes to another host 2 (h - 1) / h times, whatever the number of ranks on a
// host. Every element is added up once, along one fixed chain of all ranks, so the bits are the same on every
// rank.
//
// On a host, only one rank reads a share's elements and writes its results. It reads all inputs of a block
// before it writes the result of the block. So this works in place, and ranks of a host only wait for each
// other at the beginning and at the end. Partial results travel in slots. Results that are sent on are
// written once before that.
#include <cstring>

#include "csrc_pg/collectives/hierarchical/hierarchical.hpp"
#include "csrc_pg/collectives/hierarchical/host_reduction.hpp"
#include "csrc_pg/collectives/hierarchical/moves.hpp"
#include "csrc_pg/collectives/ring/ring_schedule.hpp"

namespace vccl {

namespace {

/// Reduces, for each host, what lies at the places of its content in the inputs of all ranks. A move's `from`
/// means nothing.
class ReduceToHosts {
 public:
  template <class ContentOf>
  ReduceToHosts(Communicator& communicator, const Call& call, ContentOf content)
      : call_(communicator, call),
        hosts_(call_.hosts()),
        element_(call_.element()),
        reduction_(call_, communicator, call),
        own_rank_(communicator.rank()) {
    for (int host = 0; host < hosts_.size(); ++host) {
      contents_.push_back(content(host));
      longest_ = std::max(longest_, call_.longest_share(contents_.back().bytes() / element_, element_));
    }
  }

  /// If `spreads`, all hosts then get the results of every host's content.
  void run(bool spreads) {
    const int chain = hosts_.size() - 1;
    if (call_.is_on_ring()) {
      const RingSchedule schedule(longest_, 1, element_, reduction_.block_bytes());
      schedule.run(
          spreads ? 2 * chain : chain,
          [&](RingSchedule::Transfer transfer) {
            if (transfer.step == 0) begin(block(schedule, transfer, 1));
            if (transfer.step >= chain) send_results(block(schedule, transfer, 1));
          },
          [&](RingSchedule::Transfer transfer) {
            if (transfer.step < chain)
              add(block(schedule, transfer, 2), transfer.step == 0, transfer.step == chain - 1);
            else
              copy(block(schedule, transfer, 2));
          });
    }
    call_.finish();
  }

 private:
  /// A block of a host's content: `range` is in bytes.
  struct Block {
    const Content& content;
    Chunk range;
  };

  /// Returns the block that a transfer is of: of the host's content that is so many places behind this host.
  Block block(const RingSchedule& schedule, RingSchedule::Transfer transfer, int behind) const {
    const int host = (hosts_.position() - transfer.step - behind + 2 * hosts_.size()) % hosts_.size();
    const Content& content = contents_[std::size_t(host)];
    const Chunk share = call_.share(content.bytes() / element_, element_);
    const auto [begin, count] = schedule.block_of_chunk(transfer, share.count);
    return {content, {(share.begin + begin) * element_, count * element_}};
  }

  void begin(const Block& block) {
    if (block.range.count == 0) return;
    if (reduction_.begins_with_elements(hosts_.position()))
      return send_block(hosts_, block.content, block.range,
                        [&](const HostMove& part) { return reduction_.own(part.from_at); });
    const std::size_t size = reduction_.partial_size(false);
    std::byte* const partial = hosts_.right().reserve();
    block.content.each(block.range, [&](const HostMove& part, std::size_t offset) {
      reduction_.begin(partial + offset / element_ * size, part.from_at, part.bytes / element_);
    });
    hosts_.right().commit(block.range.count / element_ * size);
  }

  /// Adds to what the left neighbour sent. `is_first` and `is_last` say whether that host began the chain,
  /// and whether this one ends it.
  void add(const Block& block, bool is_first, bool is_last) {
    if (block.range.count == 0) return;
    const bool elements = is_first && reduction_.begins_with_elements(call_.host_at(-1));
    const std::size_t their_size = reduction_.partial_size(elements), size = reduction_.partial_size(false);
    const std::size_t count = block.range.count / element_;
    const std::byte* const theirs = hosts_.left().take_committed(count * their_size);
    std::byte* const partial = is_last ? nullptr : hosts_.right().reserve();
    block.content.each(block.range, [&](const HostMove& part, std::size_t offset) {
      const std::byte* const their_part = theirs + offset / element_ * their_size;
      const std::size_t part_count = part.bytes / element_;
      if (!is_last)
        return reduction_.add(partial + offset / element_ * size, their_part, elements, part.from_at,
                              part_count);
      std::byte* const result = call_.output(part.to == HostMove::kToAll ? own_rank_ : part.to) + part.to_at;
      reduction_.finish(result, their_part, elements, part.from_at, part_count);
      if (part.to == HostMove::kToAll) hand_out(part, result);
    });
    hosts_.left().release();
    if (!is_last) hosts_.right().commit(count * size);
  }

  void send_results(const Block& block) {
    send_block(hosts_, block.content, block.range,
               [&](const HostMove& part) { return call_.output(own_rank_) + part.to_at; });
  }

  void copy(const Block& block) {
    if (block.range.count == 0) return;
    const std::byte* const theirs = hosts_.left().take_committed(block.range.count);
    block.content.each(block.range, [&](const HostMove& part, std::size_t offset) {
      std::byte* const own = call_.output(own_rank_) + part.to_at;
      std::memcpy(own, theirs + offset, part.bytes);
      hand_out(part, own);
    });
    hosts_.left().release();
  }

  /// Copies results to the outputs of the other ranks of this host.
  void hand_out(const HostMove& part, const std::byte* results) {
    const auto ranks = call_.peers().ranks();
    for (int step = 1; step < call_.ranks(); ++step) {
      const int rank = ranks[std::size_t((call_.peers().own() + step) % call_.ranks())];
      std::memcpy(call_.output(rank) + part.to_at, results, part.bytes);
    }
  }

  const HostCall call_;
  HostRing& hosts_;
  const std::size_t element_;
  HostReduction reduction_;
  const int own_rank_;
  std::vector<Content> contents_;  // by host
  std::size_t longest_ = 0;        // share of a ring, in elements
};

}  // namespace

void hierarchical_all_reduce(Communicator& communicator, const Call& call) {
  const std::size_t element = size_of(call.dtype);
  ReduceToHosts(communicator, call, [&](int host) {
    const auto [begin, count] = even_chunk(call.count, element, host, communicator.host_count());
    Content content;
    content.add({0, begin * element, HostMove::kToAll, begin * element, count * element});
    return content;
  }).run(true);
}

void hierarchical_reduce_scatter(Communicator& communicator, const Call& call) {
  const Chunks chunks(call.input_counts, call.count, communicator.size());
  const std::size_t element = size_of(call.dtype);
  ReduceToHosts(communicator, call, [&](int host) {
    Content content;
    for (const int to : communicator.host_ring()->ranks(host))
      content.add({0, chunks.begin(to) * element, to, 0, chunks.count(to) * element});
    return content;
  }).run(false);
}

void hierarchical_reduce(Communicator& communicator, const Call& call) {
  const int root_host = communicator.host_of(call.root);
  ReduceToHosts(communicator, call, [&](int host) {
    Content content;
    if (host == root_host) content.add({0, 0, call.root, 0, call.count * size_of(call.dtype)});
    return content;
  }).run(false);
}

}  // namespace vccl
