#include "csrc_pg/collectives/call.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "csrc_pg/collectives/buffers/chunks.hpp"

namespace vccl {

namespace {

using Counts = std::span<const std::size_t>;

[[noreturn]] void refuse(const Communicator& communicator, const Call& call, ErrorCode code,
                         const std::string& why) {
  throw Error(code, base::text(communicator.own_text_in_group(), ": ",
                               describe(signature_of(call), communicator.names()), ": ", why));
}

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto x = reinterpret_cast<std::uintptr_t>(a), y = reinterpret_cast<std::uintptr_t>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

// The signature has only a hash of uneven chunks, so this writes that: two ranks can compare it by eye.
std::string text_of_elements(const Signature& signature) {
  if (static_cast<Collective>(signature.collective) == Collective::all_to_all && signature.extra != 0)
    return "with splits";
  std::string text = base::text(signature.count, signature.count == 1 ? " element" : " elements");
  if (signature.extra == 0) return text;
  char hash[20];
  std::snprintf(hash, sizeof hash, "%08x", static_cast<unsigned>(signature.extra ^ signature.extra >> 32));
  return base::text(text, " in uneven chunks #", hash);
}

// Never returns 0, which says that the chunks are equal.
std::uint64_t hash_of(Counts counts) {
  std::uint64_t hash = base::kHashOfNothing;
  for (const std::uint64_t count : counts)
    for (int shift = 0; shift < 64; shift += 8) hash = base::hash_byte(hash, count >> shift & 0xff);
  return hash == 0 ? 1 : hash;
}

// Returns the counts that the ranks must agree on: those of a collective whose ranks all know all chunks.
Counts common_counts(const Call& call) {
  if (call.collective == Collective::all_gather) return call.output_counts;
  if (call.collective == Collective::reduce_scatter) return call.input_counts;
  return {};
}

void check_kind(const Communicator& communicator, const Call& call) {
  if (call.collective > Collective::barrier)
    throw Error(ErrorCode::unsupported,
                base::text(communicator.own_text_in_group(), ": there is no collective with number ",
                           int(call.collective)));
  if (call.collective == Collective::barrier) return;
  if (size_of(call.dtype) == 0)
    refuse(communicator, call, ErrorCode::unsupported,
           base::text("there is no dtype with number ", int(call.dtype)));
  if (!is_reduction(call.collective)) return;
  if (call.op > ReduceOp::premul_sum)
    refuse(communicator, call, ErrorCode::unsupported,
           base::text("there is no reduction with number ", int(call.op)));
  if (const char* const why = why_no_reduction(call.dtype, call.op))
    refuse(communicator, call, ErrorCode::unsupported,
           base::text(to_string(call.collective), " has no ", to_string(call.op), " of ",
                      to_string(call.dtype), " elements; ", why));
}

// Refuses buffers longer than half of the address space: the difference of two pointers into a buffer must
// fit into a std::ptrdiff_t.
void check_length(const Communicator& communicator, const Call& call) {
  const std::size_t most = std::size_t(std::numeric_limits<std::ptrdiff_t>::max()) / size_of(call.dtype);
  const auto refuse_length = [&] {
    refuse(communicator, call, ErrorCode::invalid, "the buffer would be longer than the address space");
  };
  // Where counts are given, nobody uses `count`.
  if (call.input_counts.empty() && call.output_counts.empty() &&
      call.count > most / std::size_t(communicator.size()))
    refuse_length();
  for (const Counts counts : {call.input_counts, call.output_counts}) {
    std::size_t left = most;
    for (const std::size_t count : counts) {
      if (count > left) refuse_length();
      left -= count;
    }
  }
}

void check_counts(const Communicator& communicator, const Call& call, Counts counts, const char* name,
                  bool allowed) {
  if (counts.empty()) return;
  if (!allowed)
    refuse(communicator, call, ErrorCode::invalid,
           base::text(to_string(call.collective), " takes no ", name, ": its chunks are equal"));
  if (counts.size() != std::size_t(communicator.size()))
    refuse(communicator, call, ErrorCode::invalid,
           base::text(counts.size(), " ", name, " were given for ", communicator.size(), " ranks"));
}

void check_lengths(const Communicator& communicator, const Call& call) {
  const bool exchanges = call.collective == Collective::all_to_all;
  check_counts(communicator, call, call.input_counts, "input counts",
               exchanges || call.collective == Collective::reduce_scatter);
  check_counts(communicator, call, call.output_counts, "output counts",
               exchanges || call.collective == Collective::all_gather);
  if (call.input_counts.empty() || call.output_counts.empty()) {
    if (exchanges && call.input_counts.size() != call.output_counts.size())
      refuse(communicator, call, ErrorCode::invalid,
             "input counts and output counts have to be given together");
  } else {
    const auto own = std::size_t(communicator.rank());
    if (call.input_counts[own] != call.output_counts[own])
      refuse(communicator, call, ErrorCode::invalid,
             base::text("this rank sends itself ", call.input_counts[own], " elements and expects ",
                        call.output_counts[own]));
  }
  check_length(communicator, call);
}

void check_root(const Communicator& communicator, const Call& call) {
  if (!has_root(call.collective) || (call.root >= 0 && call.root < communicator.size())) return;
  refuse(communicator, call, ErrorCode::invalid,
         base::text("root ", call.root, " is not a rank of the group, which counts its ranks from 0 to ",
                    communicator.size() - 1));
}

// Refuses buffers that overlap, unless every element of the overlap is the same element of input and output.
void check_overlap(const Communicator& communicator, const Call& call, const Buffers& buffers) {
  const int size = communicator.size(), rank = communicator.rank();
  const std::size_t element = size_of(call.dtype);
  const std::size_t input_bytes = buffers.input * element, output_bytes = buffers.output * element;
  if (!overlap(call.input, input_bytes, call.output, output_bytes)) return;

  const auto* input = static_cast<const std::byte*>(call.input);
  const auto* output = static_cast<const std::byte*>(call.output);
  const char* why = "input and output overlap without being the same buffer";
  switch (call.collective) {
    case Collective::all_gather:
    case Collective::gather:
      output += Chunks(call.output_counts, call.count, size).begin(rank) * element;
      why = "the input overlaps the output elsewhere than at this rank's own chunk";
      break;
    case Collective::reduce_scatter:
    case Collective::scatter:
      input += Chunks(call.input_counts, call.count, size).begin(rank) * element;
      why = "the output overlaps the input elsewhere than at this rank's own chunk";
      break;
    case Collective::all_to_all:
      refuse(communicator, call, ErrorCode::invalid, "input and output overlap");
    default:
      break;
  }
  if (input != output) refuse(communicator, call, ErrorCode::invalid, why);
}

}  // namespace

Signature signature_of(const Call& call) {
  Signature signature;
  signature.collective = static_cast<std::uint8_t>(call.collective);
  signature.checks = call.checks;
  if (call.collective == Collective::barrier) return signature;
  signature.dtype = static_cast<std::uint8_t>(call.dtype);
  signature.count = call.count;
  if (is_reduction(call.collective)) signature.op = static_cast<std::uint8_t>(call.op);
  if (has_root(call.collective)) signature.root = call.root;
  if (call.collective == Collective::all_to_all && !call.input_counts.empty()) {
    // Each rank has its own splits, which the algorithm compares.
    signature.count = 0;
    signature.extra = 1;
  } else if (const Counts counts = common_counts(call); !counts.empty()) {
    const bool equal = std::all_of(counts.begin(), counts.end(), [&](auto c) { return c == counts[0]; });
    signature.count = equal ? counts[0] : Chunks(counts, 0, 0).total();
    signature.extra = equal ? 0 : hash_of(counts);
  }
  return signature;
}

std::string describe(const Signature& signature, const RankNames& names) {
  const auto collective = static_cast<Collective>(signature.collective);
  std::string text = to_string(collective);
  if (collective == Collective::barrier) return base::text(text, "()");
  text += base::text("(", to_string(static_cast<Dtype>(signature.dtype)), ", ", text_of_elements(signature));
  if (is_reduction(collective)) text += base::text(", ", to_string(static_cast<ReduceOp>(signature.op)));
  if (has_root(collective)) text += base::text(", root ", names.number(signature.root));
  return base::text(text, ")");
}

std::string describe_nonfinite(const Refusal& refusal) {
  const auto [element, count, number, calls] = refusal.facts;
  return base::text("element ", element, " of ", count, " of the input",
                    calls > 1 ? base::text(" of call ", number + 1, " of ", calls, " in a batch") : "",
                    " is NaN or infinite (VCCL_CHECK=nan)");
}

Buffers buffers_of(const Call& call, int rank, int size) {
  const bool is_root = call.root == rank;
  switch (call.collective) {
    case Collective::all_reduce:
      return {call.count, call.count};
    case Collective::broadcast:
      return {is_root ? call.count : 0, call.count};
    case Collective::reduce:
      return {call.count, is_root ? call.count : 0};
    case Collective::gather:
      return {call.count, is_root ? call.count * std::size_t(size) : 0};
    case Collective::scatter:
      return {is_root ? call.count * std::size_t(size) : 0, call.count};
    case Collective::all_gather: {
      const Chunks chunks(call.output_counts, call.count, size);
      return {chunks.count(rank), chunks.total()};
    }
    case Collective::reduce_scatter: {
      const Chunks chunks(call.input_counts, call.count, size);
      return {chunks.total(), chunks.count(rank)};
    }
    case Collective::all_to_all:
      return {Chunks(call.input_counts, call.count, size).total(),
              Chunks(call.output_counts, call.count, size).total()};
    case Collective::barrier:
    case Collective::message:
      break;
  }
  return {};
}

void check_call(const Communicator& communicator, const Call& call) {
  check_kind(communicator, call);
  if (call.collective == Collective::barrier) return;
  check_lengths(communicator, call);
  check_root(communicator, call);
  const Buffers buffers = buffers_of(call, communicator.rank(), communicator.size());
  if (buffers.output > 0 && !call.output)
    refuse(communicator, call, ErrorCode::invalid, "the output is a null pointer");
  if (buffers.input > 0 && !call.input)
    refuse(communicator, call, ErrorCode::invalid, "the input is a null pointer");
  if (buffers.input > 0 && buffers.output > 0) check_overlap(communicator, call, buffers);
}

void check_announced(Communicator& communicator, const Call& call, int rank, std::size_t input,
                     std::size_t output) {
  if (call.collective == Collective::all_to_all && !call.input_counts.empty()) return;
  const Buffers wanted = buffers_of(call, rank, communicator.size());
  const std::size_t element = size_of(call.dtype);
  if (input == wanted.input * element && output == wanted.output * element) return;
  communicator.fail(
      ErrorCode::protocol,
      base::text(communicator.names().of_group(rank), " announced buffers of other lengths than ",
                 describe(signature_of(call), communicator.names()), " has"));
  communicator.check();
}

std::span<std::byte> window_of(const Call& call, int rank, int size) {
  const Buffers buffers = buffers_of(call, rank, size);
  switch (call.collective) {
    case Collective::all_reduce:
    case Collective::broadcast:
    case Collective::all_gather:
      return {static_cast<std::byte*>(call.output), buffers.output * size_of(call.dtype)};
    case Collective::barrier:
      return {};
    default:
      // The communicator does not write to a window, so the cast does no harm.
      return {static_cast<std::byte*>(const_cast<void*>(call.input)), buffers.input * size_of(call.dtype)};
  }
}

std::size_t longest_buffer(const Call& call, int size) {
  if (call.collective == Collective::barrier) return 0;
  if (call.collective == Collective::all_to_all && !call.input_counts.empty()) return 0;
  const bool whole = call.collective == Collective::all_reduce || call.collective == Collective::broadcast ||
                     call.collective == Collective::reduce;
  const std::size_t elements = whole ? call.count : Chunks(common_counts(call), call.count, size).total();
  return elements * size_of(call.dtype);
}

}  // namespace vccl
