// How a buffer is divided among the ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace vccl {

/// Says where each rank's chunk lies in a buffer: one after the other in the order of ranks. All numbers are
/// elements.
class Chunks {
 public:
  /// `counts` has the length of each rank's chunk. If it is empty, all chunks have `count` elements.
  Chunks(std::span<const std::size_t> counts, std::size_t count, int size) : counts_(counts), count_(count) {
    longest_ = counts.empty() ? count : *std::max_element(counts.begin(), counts.end());
    total_ = counts.empty() ? count * static_cast<std::size_t>(size) : 0;
    for (const std::size_t chunk : counts) {
      begins_.push_back(total_);
      total_ += chunk;
    }
  }

  std::size_t count(int rank) const {
    return counts_.empty() ? count_ : counts_[static_cast<std::size_t>(rank)];
  }
  std::size_t begin(int rank) const {
    return counts_.empty() ? static_cast<std::size_t>(rank) * count_
                           : begins_[static_cast<std::size_t>(rank)];
  }
  std::size_t longest() const { return longest_; }
  std::size_t total() const { return total_; }

 private:
  std::span<const std::size_t> counts_;
  std::size_t count_, longest_, total_;
  std::vector<std::size_t> begins_;
};

/// Some elements of a buffer that follow each other.
struct Chunk {
  std::size_t begin, count;
};

/// Returns the `index`-th of `size` chunks of about equal length that `count` elements of `element` bytes are
/// divided into. If the buffer begins at a cache line, no two chunks have a cache line in common.
Chunk even_chunk(std::size_t count, std::size_t element, int index, int size);

}  // namespace vccl
