// One-shot reductions: every rank's whole input travels with its announcement, and whoever wants results
// reduces all of it itself. They need one synchronisation, and are for small buffers.
#include <cstring>

#include "csrc_pg/collectives/buffers/chunks.hpp"
#include "csrc_pg/collectives/kernels/many_reduction.hpp"
#include "csrc_pg/collectives/oneshot/oneshot_payloads.hpp"

namespace vccl {

namespace {

// The longest buffer of all_reduce, in bytes. Every rank reduces everything, n * n times the buffer in all.
// With 4 ranks on 2 cores, 64 KiB take 105 us, and 50 with two synchronisations where each rank reduces a
// chunk.
constexpr std::size_t kLongestAllReduce = 32 * 1024;

// With PREMUL_SUM, a rank's factor comes before its elements.
constexpr std::size_t kFactorBytes = sizeof(double);

void reduce_payloads(Communicator& communicator, const Call& call, const Payloads& payloads, Chunk chunk) {
  if (chunk.count == 0) return;
  const int size = communicator.size();
  const bool premul = call.op == ReduceOp::premul_sum;
  const std::size_t offset = chunk.begin * size_of(call.dtype) + (premul ? kFactorBytes : 0);
  ManyReduction reduce(call, size);
  PerRank<const std::byte*> inputs(size);
  for (int rank = 0; rank < size; ++rank) {
    inputs.add(payloads[rank] + offset);
    double factor = 0;
    if (premul) std::memcpy(&factor, payloads[rank], sizeof factor), reduce.set_factor(rank, factor);
  }
  reduce(static_cast<std::byte*>(call.output), inputs.data(), chunk.count);
}

}  // namespace

void oneshot_all_reduce(Communicator& communicator, const Call& call) {
  const Payloads payloads = oneshot_payloads(communicator, call, {});
  reduce_payloads(communicator, call, payloads, {0, call.count});
}

void oneshot_reduce(Communicator& communicator, const Call& call) {
  const Payloads payloads = oneshot_payloads(communicator, call, {.to = call.root});
  if (communicator.rank() == call.root) reduce_payloads(communicator, call, payloads, {0, call.count});
}

void oneshot_reduce_scatter(Communicator& communicator, const Call& call) {
  const Payloads payloads = oneshot_payloads(communicator, call, {});
  const Chunks chunks(call.input_counts, call.count, communicator.size());
  const int rank = communicator.rank();
  reduce_payloads(communicator, call, payloads, {chunks.begin(rank), chunks.count(rank)});
}

std::optional<Payload> oneshot_payload(const Call& call, int rank, int size) {
  // The length of a chunk of an all_to_all with splits is known to two ranks only.
  if (call.collective == Collective::all_to_all && !call.input_counts.empty()) return std::nullopt;
  const std::size_t element = size_of(call.dtype);
  const auto bytes_of = [&](const void* from, std::size_t count) {
    return std::span(static_cast<const std::byte*>(from), from ? count * element : 0);
  };
  const std::size_t own = buffers_of(call, rank, size).input;
  if (call.collective == Collective::all_reduce && own * element > kLongestAllReduce) return std::nullopt;
  Payload payload;
  payload.data[1] = bytes_of(call.input, own);
  switch (call.collective) {
    case Collective::barrier:
      return Payload();
    case Collective::all_gather:
      payload.bytes = Chunks(call.output_counts, call.count, size).longest() * element;
      break;
    case Collective::broadcast:
      payload.bytes = call.count * element;
      break;
    case Collective::scatter:
      payload.bytes = call.count * std::size_t(size) * element;
      break;
    default:
      payload.bytes = own * element;
  }
  if (is_reduction(call.collective) && call.op == ReduceOp::premul_sum) {
    payload.data[0] = std::as_bytes(std::span(&call.factor, 1));
    payload.bytes += kFactorBytes;
  }
  return payload;
}

}  // namespace vccl
