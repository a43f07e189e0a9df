// What the tests ask of a collective: cases without memory, and how long each rank's buffers are in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "csrc_pg/collectives/call.hpp"

namespace reference {

using namespace vccl;

constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::avg,  ReduceOp::product,
                             ReduceOp::min, ReduceOp::max,  ReduceOp::band,
                             ReduceOp::bor, ReduceOp::bxor, ReduceOp::premul_sum};

/// Returns whether the reduction has a meaning for the dtype.
inline bool has_meaning(Dtype dtype, ReduceOp op) {
  const bool is_bitwise = op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
  switch (dtype) {
    case Dtype::boolean:
      return op != ReduceOp::avg && op != ReduceOp::premul_sum;
    case Dtype::float8_e4m3fnuz:
    case Dtype::float8_e5m2fnuz:
    case Dtype::float8_e8m0fnu:
      return false;
    case Dtype::complex64:
    case Dtype::complex128:
      return !is_bitwise && op != ReduceOp::min && op != ReduceOp::max;
    case Dtype::float16:
    case Dtype::bfloat16:
    case Dtype::float32:
    case Dtype::float64:
    case Dtype::float8_e4m3fn:
    case Dtype::float8_e5m2:
      return !is_bitwise;
    default:
      return op != ReduceOp::premul_sum;
  }
}

/// A call without its memory, and where in the rank's memory it works.
struct Case {
  Collective collective = Collective::all_reduce;
  Dtype dtype = Dtype::float32;
  ReduceOp op = ReduceOp::sum;
  int root = -1;
  std::size_t count = 0;
  std::size_t shift = 0;  // elements from a page's beginning to the first buffer
  bool in_place = true;
  std::uint64_t seed = 0;
  bool uneven = false;  // chunks of up to twice `count` elements

  std::string text(int size) const {
    const Signature signature{
        std::uint8_t(collective), std::uint8_t(dtype), std::uint8_t(op), 0, root, count};
    return describe(signature) + (uneven ? " (uneven chunks), " : ", ") + std::to_string(size) +
           " ranks, shift " + std::to_string(shift) + (in_place ? ", in place" : ", out of place") +
           ", seed " + std::to_string(seed);
  }
};

inline std::uint64_t mix(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u + c * 0x94d049bb133111ebu;
  x ^= x >> 29;
  x *= 0xd6e8feb86659fd93u;
  return x ^ x >> 32;
}

/// Returns the elements of the chunk that goes from one rank to another, where there are chunks.
inline std::size_t chunk_count(const Case& c, int from, int to) {
  if (!c.uneven) return c.count;
  std::uint64_t random = 0;
  if (c.collective == Collective::all_gather) random = mix(c.seed, std::uint64_t(from), 1);
  if (c.collective == Collective::reduce_scatter) random = mix(c.seed, std::uint64_t(to), 2);
  if (c.collective == Collective::all_to_all)
    random = mix(c.seed, std::uint64_t(from), std::uint64_t(to) + 3);
  return random % 4 == 0 ? 0 : random / 4 % (2 * c.count + 1);
}

/// Returns the elements that come before the chunk of `rank` in the output of `at`.
inline std::size_t output_offset(const Case& c, int at, int rank) {
  std::size_t offset = 0;
  for (int from = 0; from < rank; ++from) offset += chunk_count(c, from, at);
  return offset;
}

/// Returns the elements that come before the chunk of `rank` in the input of `at`.
inline std::size_t input_offset(const Case& c, int at, int rank) {
  std::size_t offset = 0;
  for (int to = 0; to < rank; ++to) offset += chunk_count(c, at, to);
  return offset;
}

/// Returns the elements of the input of `rank`.
inline std::size_t input_count(const Case& c, int size, int rank) {
  switch (c.collective) {
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::gather:
      return c.count;
    case Collective::broadcast:
      return rank == c.root ? c.count : 0;
    case Collective::scatter:
      return rank == c.root ? c.count * std::size_t(size) : 0;
    case Collective::all_gather:
      return chunk_count(c, rank, 0);
    case Collective::reduce_scatter:
    case Collective::all_to_all:
      return input_offset(c, rank, size);
    case Collective::barrier:
    case Collective::message:
      break;
  }
  return 0;
}

/// Returns the elements of the output of `rank`.
inline std::size_t output_count(const Case& c, int size, int rank) {
  switch (c.collective) {
    case Collective::all_reduce:
    case Collective::broadcast:
    case Collective::scatter:
      return c.count;
    case Collective::reduce:
      return rank == c.root ? c.count : 0;
    case Collective::gather:
      return rank == c.root ? c.count * std::size_t(size) : 0;
    case Collective::reduce_scatter:
      return chunk_count(c, 0, rank);
    case Collective::all_gather:
    case Collective::all_to_all:
      return output_offset(c, rank, size);
    case Collective::barrier:
    case Collective::message:
      break;
  }
  return 0;
}

/// Returns the factor of a rank for PREMUL_SUM. Each rank has another.
inline double factor_of(const Case& c, int rank) {
  const std::uint64_t random = mix(c.seed, std::uint64_t(rank), 77);
  return (0.5 + double(random % 1000003) / 1000003) * (random % 2 ? 1 : -1);
}

/// Returns whether all ranks end with the same bits.
inline bool ends_equal(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::broadcast ||
         collective == Collective::all_gather;
}

inline bool has_chunks(Collective collective) {
  return collective == Collective::all_gather || collective == Collective::reduce_scatter ||
         collective == Collective::gather || collective == Collective::scatter ||
         collective == Collective::all_to_all;
}

/// Returns random cases of all kinds, most of whose counts are where blocks and chunks end.
inline std::vector<Case> random_cases(std::uint64_t seed, int size, int how_many, std::size_t max_bytes) {
  using enum Collective;
  constexpr Collective kKinds[] = {all_reduce, all_reduce, all_reduce,     broadcast, all_gather,
                                   all_gather, reduce,     reduce_scatter, gather,    reduce_scatter,
                                   scatter,    all_to_all, all_to_all,     barrier};
  std::mt19937_64 random(seed);
  std::vector<Case> cases;
  while (int(cases.size()) < how_many) {
    Case c;
    c.seed = random();
    c.collective = kKinds[random() % std::size(kKinds)];
    c.dtype = kDtypes[random() % std::size(kDtypes)];
    c.op = kOps[random() % std::size(kOps)];
    if (is_reduction(c.collective) && !has_meaning(c.dtype, c.op)) continue;
    if (has_root(c.collective)) c.root = int(random() % std::uint64_t(size));
    if (c.collective == all_gather || c.collective == reduce_scatter || c.collective == all_to_all)
      c.uneven = random() % 2;
    const std::size_t element = size_of(c.dtype), n = std::size_t(size);
    const std::size_t most = max_bytes / element / (has_chunks(c.collective) ? n : 1);
    // Cache lines, blocks and payloads end at powers of two bytes: of a buffer, of a rank's chunk, or of all
    // chunks together. The last entry is what the ring takes in one pass.
    const std::size_t power = (std::size_t(64) << random() % 13) / element;
    const std::size_t edges[] = {
        0,     1,     2,         n - 1,     n,         n + 1,     64 / element * n,
        power, power, power * n, power * n, power / n, power / n, 393216 / element * n};
    c.count = edges[random() % std::size(edges)] * (random() % 4 == 0 ? 2 : 1);
    const int nudge = int(random() % 4);
    if (nudge == 1) c.count += 1;
    if (nudge == 2 && c.count > 0) c.count -= 1;
    if (nudge == 3) c.count = random() % (random() % 2 ? 3000 : most + 1);
    if (c.count > most) c.count = random() % (most + 1);
    c.shift = random() % 2 ? random() % 70 : 0;
    c.in_place = random() % 2;
    cases.push_back(c);
  }
  return cases;
}

}  // namespace reference
