#include "csrc_pg/collectives/direct_reduction.hpp"

#include <cstring>

#include "csrc_pg/collectives/block_copy.hpp"
#include "csrc_pg/collectives/direct_copy.hpp"
#include "csrc_pg/collectives/many_reduction.hpp"

namespace vccl {

namespace {

constexpr std::size_t kBlockBytes = 16 * 1024;

/// Where results go, and how.
struct Place {
  std::byte* to;
  // The lines are in this rank's cache, since it has just read them as input: storing to them is cheap, and
  // streaming would throw them out.
  bool is_input;
};

}  // namespace

void reduce_directly(const Direct& direct, const Call& call, std::size_t begin, std::size_t count,
                     std::span<const int> targets, std::size_t first_place) {
  if (count == 0) return;
  const std::size_t element = direct.element(), block = kBlockBytes / element;
  ManyReduction reduce(call, direct.size());
  if (call.op == ReduceOp::premul_sum)
    for (int rank = 0; rank < direct.size(); ++rank) reduce.set_factor(rank, direct.factor(rank));
  PerRank<const std::byte*> inputs = direct.inputs(begin * element);
  PerRank<Place> places(direct.size());
  for (const int rank : targets) {
    std::byte* const to = direct.output(rank) + first_place * element;
    places.add({to, to == inputs[rank]});
  }
  // Results are computed where they are stored plainly; if that is nowhere, beside.
  alignas(64) std::byte beside[kBlockBytes];
  const bool streams = count * element * std::size_t(direct.size()) >= kStreamedBytes;
  const bool own = targets[0] == direct.rank() && (places[0].is_input || !streams);

  for (std::size_t at = 0; at < count; at += block) {
    const std::size_t now = std::min(block, count - at), bytes = now * element;
    std::byte* const result = own ? places[0].to : beside;
    reduce(result, inputs.data(), now);
    for (Place& place : places) {
      if (place.to != result && place.is_input) std::memcpy(place.to, result, bytes);
      if (place.to != result && !place.is_input) copy_over_shared(place.to, result, bytes);
      place.to += bytes;
    }
    for (auto& input : inputs) input += bytes;
  }
}

}  // namespace vccl
