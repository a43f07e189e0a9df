// From a call to an algorithm: what can be refused is refused here, before anything moves.
#include <cstdint>
#include <limits>
#include <string>

#include "csrc_pg/collectives/algorithm.hpp"
#include "csrc_pg/collectives/reduce_kernels.hpp"

namespace vccl {

namespace {

// Fields without a meaning for the collective are the same on every rank, whatever the caller left in them.
Signature signature_of(const Call& call) {
  Signature signature;
  signature.collective = static_cast<std::uint8_t>(call.collective);
  if (call.collective == Collective::barrier) return signature;
  signature.dtype = static_cast<std::uint8_t>(call.dtype);
  signature.count = call.count;
  if (call.collective == Collective::all_reduce) signature.op = static_cast<std::uint8_t>(call.op);
  if (call.collective == Collective::broadcast) signature.root = call.root;
  return signature;
}

[[noreturn]] void refuse(const Communicator& communicator, const Call& call, ErrorCode code,
                         const std::string& why) {
  throw Error(code, "rank " + std::to_string(communicator.rank()) + " of " + communicator.name() + ": " +
                        describe(signature_of(call)) + ": " + why);
}

bool overlap(const void* a, const void* b, std::size_t bytes) {
  const auto x = reinterpret_cast<std::uintptr_t>(a), y = reinterpret_cast<std::uintptr_t>(b);
  return x < y + bytes && y < x + bytes;
}

void check_kind(const Communicator& communicator, const Call& call) {
  if (call.collective > Collective::barrier)
    throw Error(ErrorCode::unsupported, "rank " + std::to_string(communicator.rank()) + " of " +
                                            communicator.name() + ": there is no collective with number " +
                                            std::to_string(int(call.collective)));
  if (call.collective == Collective::barrier) return;
  if (size_of(call.dtype) == 0)
    refuse(communicator, call, ErrorCode::unsupported,
           "there is no dtype with number " + std::to_string(int(call.dtype)));
  if (call.collective != Collective::all_reduce) return;
  if (call.op > ReduceOp::max)
    refuse(communicator, call, ErrorCode::unsupported,
           "there is no reduction with number " + std::to_string(int(call.op)));
  if (!find_reduction(call.dtype, call.op))
    refuse(communicator, call, ErrorCode::unsupported,
           std::string("all_reduce has no ") + to_string(call.op) + " of " + to_string(call.dtype) +
               " elements; reduce with MAX (any) or MIN (all), or convert to a number first");
}

void check_memory(const Communicator& communicator, const Call& call) {
  if (call.collective == Collective::barrier) return;
  const int size = communicator.size(), rank = communicator.rank();
  const std::size_t parts = call.collective == Collective::all_gather ? std::size_t(size) : 1;
  // Half of the address space: the difference of two pointers into a buffer must fit as well.
  if (call.count > std::size_t(std::numeric_limits<std::ptrdiff_t>::max()) / size_of(call.dtype) / parts)
    refuse(communicator, call, ErrorCode::invalid, "the buffer would be longer than the address space");
  if (call.collective == Collective::broadcast && (call.root < 0 || call.root >= size))
    refuse(communicator, call, ErrorCode::invalid,
           "root " + std::to_string(call.root) + " is not a rank of the group; its ranks are 0 to " +
               std::to_string(size - 1));
  if (call.count == 0) return;
  if (!call.output) refuse(communicator, call, ErrorCode::invalid, "the output is a null pointer");
  // Only the root reads its input.
  if (call.collective == Collective::broadcast && call.root != rank) return;
  if (!call.input) refuse(communicator, call, ErrorCode::invalid, "the input is a null pointer");

  const std::size_t bytes = call.count * size_of(call.dtype);
  const auto* output = static_cast<const std::byte*>(call.output);
  const auto* own = parts == 1 ? output : output + std::size_t(rank) * bytes;
  if (call.input == own) return;
  for (std::size_t part = 0; part < parts; ++part)
    if (overlap(call.input, output + part * bytes, bytes))
      refuse(communicator, call, ErrorCode::invalid,
             parts == 1 ? "input and output overlap without being the same buffer"
                        : "the input overlaps the output elsewhere than at this rank's own part");
}

}  // namespace

void run(Communicator& communicator, const Call& call, const Deadline& deadline) {
  check_kind(communicator, call);
  check_memory(communicator, call);
  const auto& algorithm = select_algorithm(communicator, call);

  const bool is_barrier = call.collective == Collective::barrier;
  const std::size_t parts = call.collective == Collective::all_gather ? std::size_t(communicator.size()) : 1;
  const std::size_t bytes = is_barrier ? 0 : call.count * size_of(call.dtype) * parts;
  Operation operation(communicator, signature_of(call), {static_cast<std::byte*>(call.output), bytes},
                      deadline);
  algorithm.run(communicator, call);
  operation.finish();
}

}  // namespace vccl
