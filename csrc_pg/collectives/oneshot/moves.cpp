// One-shot moves: what a rank gives travels with its announcement, and whoever wants it copies it from there.
// They need one synchronisation, and are for small buffers.
#include <cstring>

#include "csrc_pg/collectives/buffers/chunks.hpp"
#include "csrc_pg/collectives/oneshot/oneshot.hpp"

namespace vccl {

namespace {

/// Copies from the payloads of ranks into this rank's output.
class Collector {
 public:
  Collector(Communicator& communicator, const Call& call)
      : peers_(*communicator.all_peers()),
        element_(size_of(call.dtype)),
        output_(static_cast<std::byte*>(call.output)) {}

  /// Copies `count` elements of the payload of `from`, from `begin` on, to `output_begin` in the output.
  void take(int from, std::size_t begin, std::size_t count, std::size_t output_begin) const {
    if (count > 0)
      std::memcpy(output_ + output_begin * element_, peers_.payload(from) + begin * element_,
                  count * element_);
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
  const Chunks chunks(call.output_counts, call.count, communicator.size());
  const Collector collector(communicator, call);
  for (int from = 0; from < communicator.size(); ++from)
    collector.take(from, 0, chunks.count(from), chunks.begin(from));
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

// All ranks have arrived when all have announced the operation, which it waited for at its beginning.
void oneshot_barrier(Communicator&, const Call&) {}

}  // namespace vccl
