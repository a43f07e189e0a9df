#include "csrc_pg/collectives/direct_reduction.hpp"

#include <algorithm>
#include <cstring>

#include "csrc_pg/collectives/direct_copy.hpp"
#include "csrc_pg/collectives/many_reduction.hpp"
#include "csrc_pg/collectives/strands.hpp"
#include "transport/past_caches.hpp"

namespace vccl {

namespace {

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

/// In bytes. The head is what comes before the first whole cache line of the first place.
struct Extent {
  std::size_t total, head, element;
  std::size_t strands;
};

/// Of results that go to all ranks: what has just been read of all inputs is still in the first-level cache
/// then, where the results replace it. With 4 ranks, 1 MiB, 16 KiB are 10 % slower than 4.
std::size_t block_for(int ranks) {
  // Every piece but the first begins at a line.
  return std::max<std::size_t>(16 * 1024 / std::size_t(ranks) / kLineBytes * kLineBytes, 2 * 1024);
}

/// Each result is stored once, where it belongs: plainly, or straight past the caches.
void reduce_to_one(const ManyReduction& reduce, PerRank<const std::byte*>& inputs, const Place& place,
                   bool plainly, const Extent& extent) {
  reduce(place.to, inputs.data(), extent.head / extent.element);
  for (const std::byte*& input : inputs) input += extent.head;
  reduce(place.to + extent.head, inputs.data(), (extent.total - extent.head) / extent.element,
         {plainly ? Stores::plain : Stores::past_caches, int(extent.strands)});
}

/// A piece of the results is computed in the first place (`plainly`), or beside, and goes from there to all.
void reduce_to_all(const ManyReduction& reduce, const PerRank<const std::byte*>& inputs,
                   const PerRank<Place>& places, bool plainly, const Extent& extent) {
  const std::size_t step = extent.strands > 1 ? kRunBytes
                           : plainly          ? block_for(int(inputs.size()))
                                              : kBesideBytes;
  alignas(64) std::byte beside[kBesideBytes];
  PerRank<const std::byte*> pieces(int(inputs.size()));
  for (const std::byte* input : inputs) pieces.add(input);
  in_strands(extent.total, extent.head, extent.strands, step, [&](std::size_t at, std::size_t bytes) {
    for (int rank = 0; rank < int(inputs.size()); ++rank) pieces[rank] = inputs[rank] + at;
    std::byte* const result = plainly ? places[0].to + at : beside;
    reduce(result, pieces.data(), bytes / extent.element);
    for (const Place& place : places) {
      std::byte* const to = place.to + at;
      if (to == result) continue;
      if (place.past_caches)
        store_past_caches(to, result, bytes);
      else
        std::memcpy(to, result, bytes);
    }
  });
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
  const bool leaves_caches = leave_caches(total * std::size_t(direct.size()), direct.size());
  const std::size_t line = bytes_to_line(places[0].to);
  const bool at_lines = line % element == 0;
  const Extent extent{.total = total,
                      .head = at_lines ? std::min(line, total) : 0,
                      .element = element,
                      .strands = leaves_caches ? strands_for(direct.size()) : 1};
  const Place& first = places[0];
  const bool is_only = places.size() == 1, is_own = targets[0] == direct.rank();
  // Where the lines are in this rank's cache already, or will stay there.
  const bool plainly = first.is_input || (is_own && !leaves_caches);
  if (is_only && (plainly || (first.past_caches && at_lines)))
    reduce_to_one(reduce, inputs, first, plainly, extent);
  else
    reduce_to_all(reduce, inputs, places, plainly, extent);
  if (total >= kLeastPastCaches) finish_stores();
}

}  // namespace vccl
