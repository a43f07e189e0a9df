// Hierarchical all_reduce: the elements are divided into a share for each place on a host. The ranks with the
// same place on all hosts reduce their share round their ring of hosts. Each adds up the elements of all
// ranks of its host, straight from their inputs, and writes results straight into the outputs of all of them.
//
// So each byte goes to another host 2 (h - 1) / h times, whatever the number of ranks on a host. Every
// element is added up once, along one fixed chain of all ranks, so the bits are the same on every rank.
//
// On a host, only one rank reads a share's elements and writes its results. It reads all inputs of a block
// before it sends its partial result, and writes the result of the block after that. So this works in place,
// and ranks of a host only wait for each other at the beginning and at the end. Partial results travel in
// slots, and the window has results only, each of which is written once before it is posted.
#include <bit>
#include <cstring>

#include "csrc_pg/collectives/buffers/chunks.hpp"
#include "csrc_pg/collectives/buffers/per_rank.hpp"
#include "csrc_pg/collectives/hierarchical/hierarchical.hpp"
#include "csrc_pg/collectives/kernels/many_reduction.hpp"
#include "csrc_pg/collectives/ring/ring_schedule.hpp"

namespace vccl {

namespace {

class HierarchicalAllReduce {
 public:
  HierarchicalAllReduce(Communicator& communicator, const Call& call)
      : communicator_(communicator),
        call_(call),
        peers_(communicator.host_peers()),
        hosts_(*communicator.host_ring()),
        ranks_(static_cast<int>(peers_.ranks().size())),
        element_(size_of(call.dtype)),
        reduction_(*find_reduction(call.dtype, call.op)),
        divisor_(scalar_of(call, communicator.size())),
        share_(even_chunk(call.count, element_, peers_.own(), ranks_)),
        schedule_(share_.count, hosts_.size(), element_,
                  ring_block_bytes(communicator) * element_ / reduction_.partial_size),
        inputs_(ranks_),
        outputs_(ranks_) {
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peers_.input(peer).size() != call.count * element_ ||
          peers_.output(peer).size() != call.count * element_) {
        communicator.fail(ErrorCode::protocol, "a rank announced buffers of other lengths than its call has");
        communicator.check();
      }
      inputs_.add(peers_.input(peer).data() + share_.begin * element_);
      outputs_.add(peers_.output(peer).data() + share_.begin * element_);
    }
  }

  void run() {
    const int last = hosts_.size() - 1;
    schedule_.run(
        2 * last, [this](RingSchedule::Transfer transfer) { send(transfer); },
        [this, last](RingSchedule::Transfer transfer) {
          transfer.step < last ? reduce(transfer, transfer.step == last - 1) : copy(transfer);
        });
    peers_.arrive(Peers::kDone);
    peers_.await_all(Peers::kDone);
  }

 private:
  RingSchedule::Block block(RingSchedule::Transfer transfer, int behind) const {
    const int size = hosts_.size();
    return schedule_.block(transfer.pass, (hosts_.position() - transfer.step - behind + 2 * size) % size,
                           transfer.block);
  }

  /// Returns the number that the elements of a rank of this host are combined with.
  double scalar(int peer) const {
    return call_.op == ReduceOp::premul_sum ? std::bit_cast<double>(peers_.factor(peer)) : divisor_;
  }

  void send(RingSchedule::Transfer transfer) {
    const auto [begin, count] = block(transfer, 0);
    if (count == 0) return;
    if (transfer.step == 0) {
      begin_chain(hosts_.right().reserve(), begin * element_, count);
      hosts_.right().commit(count * reduction_.partial_size);
    } else if (transfer.step >= hosts_.size() - 1) {
      // Partial results of the steps between were sent when they were computed.
      hosts_.right().post((share_.begin + begin) * element_, count * element_);
    }
  }

  /// Adds up the elements of this host's ranks.
  void begin_chain(std::byte* partial, std::size_t offset, std::size_t count) {
    int next = 1;
    if (reduction_.start)
      reduction_.start(partial, nullptr, inputs_[0] + offset, count, scalar(0));
    else
      reduction_.first(partial, inputs_[0] + offset, inputs_[next++] + offset, count, divisor_);
    for (; next < ranks_; ++next)
      reduction_.middle(partial, partial, inputs_[next] + offset, count, scalar(next));
  }

  void reduce(RingSchedule::Transfer transfer, bool is_last) {
    const auto [begin, count] = block(transfer, 1);
    if (count == 0) return;
    const std::size_t offset = begin * element_, partial_bytes = count * reduction_.partial_size;
    const std::byte* theirs = hosts_.left().take_committed(partial_bytes);
    if (is_last && partials_.size() < partial_bytes) partials_.resize(partial_bytes);
    std::byte* const partial = is_last ? partials_.data() : hosts_.right().reserve();
    for (int peer = 0; peer < ranks_; ++peer) {
      const bool ends = is_last && peer == ranks_ - 1;
      (ends ? reduction_.last : reduction_.middle)(ends ? own_output() + offset : partial,
                                                   peer == 0 ? theirs : partial, inputs_[peer] + offset,
                                                   count, scalar(peer));
    }
    hosts_.left().release();
    if (is_last)
      hand_out(own_output() + offset, offset, count * element_);
    else
      hosts_.right().commit(partial_bytes);
  }

  void copy(RingSchedule::Transfer transfer) {
    const auto [begin, count] = block(transfer, 1);
    if (count == 0) return;
    const std::size_t offset = begin * element_, bytes = count * element_;
    const std::byte* theirs = hosts_.left().take((share_.begin + begin) * element_, bytes);
    std::memcpy(own_output() + offset, theirs, bytes);
    hosts_.left().release();
    hand_out(own_output() + offset, offset, bytes);
  }

  /// Copies results to the outputs of the other ranks of this host.
  void hand_out(const std::byte* results, std::size_t offset, std::size_t bytes) {
    for (int step = 1; step < ranks_; ++step)
      std::memcpy(outputs_[(peers_.own() + step) % ranks_] + offset, results, bytes);
  }

  std::byte* own_output() { return outputs_[peers_.own()]; }

  Communicator& communicator_;
  const Call& call_;
  Peers& peers_;
  HostRing& hosts_;
  const int ranks_;  // of this host
  const std::size_t element_;
  const Reduction& reduction_;
  const double divisor_;
  const Chunk share_;
  const RingSchedule schedule_;
  PerRank<const std::byte*> inputs_;  // this rank's share of them, by peer
  PerRank<std::byte*> outputs_;
  std::vector<std::byte> partials_;
};

}  // namespace

void hierarchical_all_reduce(Communicator& communicator, const Call& call) {
  HierarchicalAllReduce(communicator, call).run();
}

}  // namespace vccl
