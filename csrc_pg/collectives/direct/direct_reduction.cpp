#include "csrc_pg/collectives/direct/direct_reduction.hpp"

#include <algorithm>
#include <cstring>

#include "base/past_caches.hpp"
#include "csrc_pg/collectives/buffers/copy.hpp"
#include "csrc_pg/collectives/buffers/interleave.hpp"
#include "csrc_pg/collectives/kernels/many_reduction.hpp"

namespace vccl {

namespace {

// The bytes of results that are computed in a buffer of their own. The processor reads the inputs of the next
// results while it stores these past the caches.
constexpr std::size_t kOwnBufferBytes = 2 * 1024;

/// Says where results go, and how.
struct Destination {
  std::byte* to;
  // The lines are in this rank's cache, since it has just read them as input. Storing to them is cheap, and
  // storing past the caches would throw them out.
  bool is_input;
  bool past_caches;
};

/// Returns how many ways to interleave. Every way reads at a place of each input, and with more than eight
/// places in all it gets slower.
std::size_t ways_for(int ranks) {
  return std::clamp<std::size_t>(8 / std::size_t(ranks), 1, 4);
}

/// The sizes of one reduction, in bytes. The head is what comes before the first whole cache line of the
/// first destination.
struct Sizes {
  std::size_t total, head, element;
  std::size_t ways;
};

/// Returns the bytes of a block of results that go to all ranks. What has just been read of all inputs must
/// still be in the first-level cache when the results replace it. With 4 ranks and 1 MiB, blocks of 16 KiB
/// are 10 % slower than blocks of 4.
std::size_t block_bytes_for(int ranks) {
  // Every block but the first begins at a line.
  return std::max<std::size_t>(16 * 1024 / std::size_t(ranks) / base::kLineBytes * base::kLineBytes,
                               2 * 1024);
}

/// Reduces to one destination. Each result is stored once: plainly, or straight past the caches.
void reduce_to_one(const ManyReduction& reduce, PerRank<const std::byte*>& inputs,
                   const Destination& destination, bool plainly, const Sizes& sizes) {
  reduce(destination.to, inputs.data(), sizes.head / sizes.element);
  for (const std::byte*& input : inputs) input += sizes.head;
  reduce(destination.to + sizes.head, inputs.data(), (sizes.total - sizes.head) / sizes.element,
         {plainly ? Stores::plain : Stores::past_caches, int(sizes.ways)});
}

/// Reduces to all destinations. A block of results is computed in the first destination (`plainly`) or in a
/// buffer of its own, and copied from there to all others.
void reduce_to_all(const ManyReduction& reduce, const PerRank<const std::byte*>& inputs,
                   const PerRank<Destination>& destinations, bool plainly, const Sizes& sizes) {
  const std::size_t step = sizes.ways > 1 ? kInterleavedBytes
                           : plainly      ? block_bytes_for(int(inputs.size()))
                                          : kOwnBufferBytes;
  alignas(64) std::byte own_buffer[kOwnBufferBytes];
  PerRank<const std::byte*> blocks(int(inputs.size()));
  for (const std::byte* input : inputs) blocks.add(input);
  interleave(sizes.total, sizes.head, sizes.ways, step, [&](std::size_t at, std::size_t bytes) {
    for (int rank = 0; rank < int(inputs.size()); ++rank) blocks[rank] = inputs[rank] + at;
    std::byte* const result = plainly ? destinations[0].to + at : own_buffer;
    reduce(result, blocks.data(), bytes / sizes.element);
    for (const Destination& destination : destinations) {
      std::byte* const to = destination.to + at;
      if (to == result) continue;
      if (destination.past_caches)
        base::store_past_caches(to, result, bytes);
      else
        std::memcpy(to, result, bytes);
    }
  });
}

}  // namespace

void reduce_directly(const DirectCall& direct, const Call& call, Chunk chunk, std::span<const int> targets,
                     std::size_t output_begin) {
  if (chunk.count == 0) return;
  const std::size_t element = direct.element(), total = chunk.count * element;
  ManyReduction reduce(call, direct.size());
  if (call.op == ReduceOp::premul_sum)
    for (int rank = 0; rank < direct.size(); ++rank) reduce.set_factor(rank, direct.factor(rank));
  PerRank<const std::byte*> inputs = direct.inputs(chunk.begin * element);
  PerRank<Destination> destinations(direct.size());
  for (const int rank : targets) {
    std::byte* const to = direct.output(rank) + output_begin * element;
    const bool is_input = to == inputs[rank];
    destinations.add({to, is_input, !is_input && total >= base::kLeastPastCaches});
  }
  const bool leaves_caches = leave_caches(total * std::size_t(direct.size()), direct.size());
  const std::size_t line = base::bytes_to_line(destinations[0].to);
  const bool at_lines = line % element == 0;
  const Sizes sizes{.total = total,
                    .head = at_lines ? std::min(line, total) : 0,
                    .element = element,
                    .ways = leaves_caches ? ways_for(direct.size()) : 1};
  const Destination& first = destinations[0];
  const bool is_only = destinations.size() == 1, is_own = targets[0] == direct.rank();
  // The lines are in this rank's cache already, or will stay there.
  const bool plainly = first.is_input || (is_own && !leaves_caches);
  if (is_only && (plainly || (first.past_caches && at_lines)))
    reduce_to_one(reduce, inputs, first, plainly, sizes);
  else
    reduce_to_all(reduce, inputs, destinations, plainly, sizes);
  if (total >= base::kLeastPastCaches) base::finish_stores();
}

}  // namespace vccl
