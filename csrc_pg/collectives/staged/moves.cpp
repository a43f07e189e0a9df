// Staged moves: each rank that has something for others copies it into its slots, a block at a time, and the
// others copy it out while the next blocks are copied in.
#include <algorithm>
#include <cstring>

#include "csrc_pg/collectives/buffers/chunks.hpp"
#include "csrc_pg/collectives/buffers/copy.hpp"
#include "csrc_pg/collectives/buffers/splits.hpp"
#include "csrc_pg/collectives/staged/staged.hpp"
#include "csrc_pg/collectives/staged/staged_pipeline.hpp"
#include "transport/slot_copy.hpp"

namespace vccl {

namespace {

/// The elements that go from one rank to another.
struct MovedChunk {
  std::size_t input_begin;  // in the input of the rank that sends
  std::size_t count;
  std::size_t output_begin;  // in the output of the rank that receives
};

/// Says what a rank writes into each of its slots.
enum class SlotHolds {
  one_block,        // the same for all ranks that read it
  block_per_reader  // one for each other rank, in the order of ranks
};

class StagedMove {
 public:
  StagedMove(Communicator& communicator, const Call& call)
      : peers_(*communicator.all_peers()),
        rank_(communicator.rank()),
        size_(communicator.size()),
        element_(size_of(call.dtype)),
        input_(static_cast<const std::byte*>(call.input)),
        output_(static_cast<std::byte*>(call.output)) {}

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Moves everything. `moved(from, to)` is what goes from a rank that writes to one that reads, or to
  /// itself; none is longer than `longest` elements. `writer` is the only rank that others read from, or
  /// kEverybody; `reader` is the only rank that reads, or kEverybody.
  template <class MovedOf>
  void run(SlotHolds slot_holds, int writer, int reader, std::size_t longest, MovedOf moved) {
    const bool is_writer = writer == kEverybody || writer == rank_;
    const bool is_reader = reader == kEverybody || reader == rank_;
    if (size_ == 1) {
      keep(moved(rank_, rank_), {0, longest * element_});
      return;
    }
    const bool is_one_way = writer != kEverybody || reader != kEverybody;
    const std::size_t per_slot = slot_holds == SlotHolds::one_block ? 1 : std::size_t(size_) - 1;
    const Blocks blocks(longest * element_,
                        longest_block(longest * element_, StagedPipeline::kMostBytes / per_slot, is_one_way));
    const bool writes = is_writer && reader != rank_, reads = is_reader && writer != rank_;
    StagedPipeline pipeline(peers_, rank_, per_slot * blocks.length(), reads ? writer : kNobody,
                            writes ? reader : kNobody);

    const auto keep_block = [&](std::size_t k) {
      const MovedChunk own = moved(rank_, rank_);
      keep(own, blocks.of(k, own.count * element_));
    };
    const auto write_block = [&](std::size_t k, int to, std::size_t index) {
      const MovedChunk own = moved(rank_, to);
      const auto [begin, bytes] = blocks.of(k, own.count * element_);
      if (bytes > 0)
        copy_to_slot(pipeline.slot(rank_, k) + index * blocks.length(),
                     input_ + own.input_begin * element_ + begin, bytes);
    };
    const auto write = [&](std::size_t k) {
      if (slot_holds == SlotHolds::one_block) {
        write_block(k, reader == kEverybody ? (rank_ + 1) % size_ : reader, 0);
      } else {
        for (int distance = 1; distance < size_; ++distance) {
          const int to = (rank_ + distance) % size_;
          write_block(k, to, block_in_slot(rank_, to));
        }
      }
      if (is_writer && is_reader) keep_block(k);
    };
    const auto read = [&](std::size_t k) {
      for (int distance = 1; distance < size_; ++distance) {
        const int from = (rank_ + distance) % size_;
        if (writer != kEverybody && from != writer) continue;
        const MovedChunk theirs = moved(from, rank_);
        const auto [begin, bytes] = blocks.of(k, theirs.count * element_);
        const std::size_t index = slot_holds == SlotHolds::one_block ? 0 : block_in_slot(from, rank_);
        pull(output_ + theirs.output_begin * element_ + begin,
             pipeline.slot(from, k) + index * blocks.length(), bytes,
             leave_caches(longest * element_, size_));
      }
      if (!writes) keep_block(k);
    };
    pipeline.run(blocks.count(), write, read);
  }

 private:
  void keep(MovedChunk own, Blocks::Block block) {
    const std::byte* from = input_ + own.input_begin * element_ + block.begin;
    std::byte* to = output_ + own.output_begin * element_ + block.begin;
    if (block.bytes > 0 && from != to) std::memcpy(to, from, block.bytes);
  }

  Peers& peers_;
  const int rank_, size_;
  const std::size_t element_;
  const std::byte* const input_;
  std::byte* const output_;
};

}  // namespace

void staged_broadcast(Communicator& communicator, const Call& call) {
  StagedMove move(communicator, call);
  // Only the root copies its own input to its output.
  move.run(SlotHolds::one_block, call.root, kEverybody, call.count,
           [&](int from, int) { return MovedChunk{0, from == call.root ? call.count : 0, 0}; });
}

void staged_all_gather(Communicator& communicator, const Call& call) {
  StagedMove move(communicator, call);
  const Chunks chunks(call.output_counts, call.count, move.size());
  move.run(SlotHolds::one_block, kEverybody, kEverybody, chunks.longest(),
           [&](int from, int) { return MovedChunk{0, chunks.count(from), chunks.begin(from)}; });
}

void staged_gather(Communicator& communicator, const Call& call) {
  StagedMove move(communicator, call);
  move.run(SlotHolds::one_block, kEverybody, call.root, call.count, [&](int from, int to) {
    return MovedChunk{0, to == call.root ? call.count : 0, std::size_t(from) * call.count};
  });
}

void staged_scatter(Communicator& communicator, const Call& call) {
  StagedMove move(communicator, call);
  move.run(SlotHolds::block_per_reader, call.root, kEverybody, call.count, [&](int from, int to) {
    return MovedChunk{std::size_t(to) * call.count, from == call.root ? call.count : 0, 0};
  });
}

void staged_all_to_all(Communicator& communicator, const Call& call) {
  StagedMove move(communicator, call);
  const Splits splits(Splits::Announced{}, communicator, call);
  move.run(SlotHolds::block_per_reader, kEverybody, kEverybody, splits.longest(), [&](int from, int to) {
    return MovedChunk{splits.input_offset(from, to), splits.count(from, to), splits.output_offset(from, to)};
  });
}

}  // namespace vccl
