// One-shot moves: what a rank gives travels with its announcement, and whoever wants it copies it from there.
// One synchronisation; for small buffers.
#include <cstring>

#include "csrc_pg/collectives/algorithm.hpp"
#include "csrc_pg/collectives/parts.hpp"

namespace vccl {

namespace {

/// A rank's own output, and how much of whose payload goes where in it.
class Collector {
 public:
  Collector(Communicator& communicator, const Call& call)
      : peers_(*communicator.peers()),
        element_(size_of(call.dtype)),
        output_(static_cast<std::byte*>(call.output)) {}

  /// `count` elements of the payload of `from`, from `begin` on, to `place` in the output.
  void take(int from, std::size_t begin, std::size_t count, std::size_t place) const {
    if (count > 0)
      std::memcpy(output_ + place * element_, peers_.payload(from) + begin * element_, count * element_);
  }

 private:
  Peers& peers_;
  const std::size_t element_;
  std::byte* const output_;
};

}  // namespace

void oneshot_broadcast(Communicator& communicator, const Call& call) {
  if (call.input != call.output || communicator.rank() != call.root)
    Collector(communicator, call).take(call.root, 0, call.count, 0);
}

void oneshot_all_gather(Communicator& communicator, const Call& call) {
  const Parts parts(call.output_counts, call.count, communicator.size());
  const Collector collector(communicator, call);
  for (int from = 0; from < communicator.size(); ++from)
    collector.take(from, 0, parts.count(from), parts.begin(from));
}

void oneshot_gather(Communicator& communicator, const Call& call) {
  if (communicator.rank() == call.root) oneshot_all_gather(communicator, call);
}

void oneshot_scatter(Communicator& communicator, const Call& call) {
  const auto rank = std::size_t(communicator.rank());
  Collector(communicator, call).take(call.root, rank * call.count, call.count, 0);
}

void oneshot_all_to_all(Communicator& communicator, const Call& call) {
  const Collector collector(communicator, call);
  const auto rank = std::size_t(communicator.rank());
  for (int from = 0; from < communicator.size(); ++from)
    collector.take(from, rank * call.count, call.count, std::size_t(from) * call.count);
}

// Everybody has arrived when everybody has announced it.
void oneshot_barrier(Communicator&, const Call&) {}

}  // namespace vccl
