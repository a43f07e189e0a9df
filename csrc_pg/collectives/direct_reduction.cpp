#include "csrc_pg/collectives/direct_reduction.hpp"

#include <algorithm>
#include <cstring>

#include "csrc_pg/collectives/direct_copy.hpp"
#include "csrc_pg/collectives/many_reduction.hpp"
#include "csrc_pg/collectives/strands.hpp"
#include "transport/past_caches.hpp"

namespace vccl {

namespace {

constexpr std::size_t kBlockBytes = 16 * 1024;
// Of results that are computed beside: while some are stored past the caches, the inputs of the next are
// read.
constexpr std::size_t kBesideBytes = 2 * 1024;

/// Where results go, and how.
struct Place {
  std::byte* to;
  // The lines are in this rank's cache, since it has just read them as input: storing to them is cheap, and
  // streaming would throw them out.
  bool is_input;
  bool past_caches;
};

// All inputs in all strands are as many places to read from, and with more than eight it gets slower.
std::size_t strands_for(int ranks) {
  return std::clamp<std::size_t>(8 / std::size_t(ranks), 1, 4);
}

}  // namespace

void reduce_directly(const Direct& direct, const Call& call, std::size_t begin, std::size_t count,
                     std::span<const int> targets, std::size_t first_place) {
  if (count == 0) return;
  const std::size_t element = direct.element(), total = count * element;
  ManyReduction reduce(call, direct.size());
  if (call.op == ReduceOp::premul_sum)
    for (int rank = 0; rank < direct.size(); ++rank) reduce.set_factor(rank, direct.factor(rank));
  PerRank<const std::byte*> inputs = direct.inputs(begin * element);
  PerRank<Place> places(direct.size());
  for (const int rank : targets) {
    std::byte* const to = direct.output(rank) + first_place * element;
    const bool is_input = to == inputs[rank];
    places.add({to, is_input, !is_input && total >= kLeastPastCaches});
  }
  // Results are computed where they are stored plainly; if that is nowhere, beside.
  const bool leaves_caches = leave_caches(total * std::size_t(direct.size()), direct.size());
  const bool own = targets[0] == direct.rank() && (places[0].is_input || !leaves_caches);
  const std::size_t strands = leaves_caches ? strands_for(direct.size()) : 1;
  const std::size_t step = strands > 1 ? kRunBytes : own ? kBlockBytes : kBesideBytes;
  const std::size_t line = bytes_to_line(places[0].to), head = line % element == 0 ? line : 0;
  alignas(64) std::byte beside[kBesideBytes];
  PerRank<const std::byte*> pieces = direct.inputs(begin * element);

  in_strands(total, head, strands, step, [&](std::size_t at, std::size_t bytes) {
    for (int rank = 0; rank < direct.size(); ++rank) pieces[rank] = inputs[rank] + at;
    std::byte* const result = own ? places[0].to + at : beside;
    reduce(result, pieces.data(), bytes / element);
    for (const Place& place : places) {
      std::byte* const to = place.to + at;
      if (to == result) continue;
      if (place.past_caches)
        store_past_caches(to, result, bytes);
      else
        std::memcpy(to, result, bytes);
    }
  });
  if (total >= kLeastPastCaches) finish_stores();
}

}  // namespace vccl
