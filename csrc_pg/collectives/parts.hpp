// How a buffer is divided among the ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace vccl {

/// Where each rank's part lies in a buffer: one after the other in the order of ranks. In elements.
class Parts {
 public:
  /// `counts`: the length of each rank's part; empty: all have `count`.
  Parts(std::span<const std::size_t> counts, std::size_t count, int size) : counts_(counts), count_(count) {
    longest_ = counts.empty() ? count : *std::max_element(counts.begin(), counts.end());
    total_ = counts.empty() ? count * static_cast<std::size_t>(size) : 0;
    for (const std::size_t part : counts) {
      begins_.push_back(total_);
      total_ += part;
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

}  // namespace vccl
