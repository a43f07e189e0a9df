// One-shot moves: what a rank gives travels with its announcement, and whoever wants it copies it from there.
// They need one synchronisation, and are for small buffers.
#include <cstring>

#include "csrc_pg/collectives/buffers/chunks.hpp"
#include "csrc_pg/collectives/oneshot/oneshot.hpp"
#include "csrc_pg/collectives/oneshot/oneshot_payloads.hpp"

namespace vccl {

namespace {

/// Copies from the payloads of ranks into this rank's output.
class Collector {
 public:
  Collector(Communicator& communicator, const Call& call, PayloadRoute route = {})
      : payloads_(oneshot_payloads(communicator, call, route)),
        element_(size_of(call.dtype)),
        output_(static_cast<std::byte*>(call.output)) {}

  /// Copies `count` elements of the payload of `from`, from `begin` on, to `output_begin` in the output.
  void take(int from, std::size_t begin, std::size_t count, std::size_t output_begin) const {
    if (count > 0)
      std::memcpy(output_ + output_begin * element_, payloads_[from] + begin * element_, count * element_);
  }

 private:
  const Payloads payloads_;
  const std::size_t element_;
  std::byte* const output_;
};

void take_all(Communicator& communicator, const Call& call, const Collector& collector) {
  const Chunks chunks(call.output_counts, call.count, communicator.size());
  for (int from = 0; from < communicator.size(); ++from)
    collector.take(from, 0, chunks.count(from), chunks.begin(from));
}

}  // namespace

void oneshot_broadcast(Communicator& communicator, const Call& call) {
  const Collector collector(communicator, call, {.from = call.root});
  if (call.input != call.output || communicator.rank() != call.root)
    collector.take(call.root, 0, call.count, 0);
}

void oneshot_all_gather(Communicator& communicator, const Call& call) {
  const Collector collector(communicator, call);
  take_all(communicator, call, collector);
}

void oneshot_gather(Communicator& communicator, const Call& call) {
  const Collector collector(communicator, call, {.to = call.root});
  if (communicator.rank() == call.root) take_all(communicator, call, collector);
}

void oneshot_scatter(Communicator& communicator, const Call& call) {
  const Collector collector(communicator, call, {.from = call.root});
  collector.take(call.root, std::size_t(communicator.rank()) * call.count, call.count, 0);
}

void oneshot_all_to_all(Communicator& communicator, const Call& call) {
  const Collector collector(communicator, call);
  const auto rank = std::size_t(communicator.rank());
  for (int from = 0; from < communicator.size(); ++from)
    collector.take(from, rank * call.count, call.count, std::size_t(from) * call.count);
}

// All ranks of a host have arrived when all have announced the operation, which it waited for at its
// beginning.
void oneshot_barrier(Communicator& communicator, const Call& call) {
  oneshot_payloads(communicator, call, {});
}

}  // namespace vccl
