// How many messages have gone between this rank and the ranks on other hosts.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace vccl {

/// Counts, for each rank, the control messages of the message links that this rank has sent there or will as
/// soon as it can, and those that have come from there. If what one rank has sent and what the other has
/// heard is the same number, nothing is under way. Any thread may read.
class Traffic {
 public:
  explicit Traffic(int ranks) : counts_(static_cast<std::size_t>(ranks)) {}

  void count_sent(int rank) noexcept { of(rank).sent.fetch_add(1); }
  void count_heard(int rank) noexcept { of(rank).heard.fetch_add(1); }
  std::uint64_t sent(int rank) const noexcept { return of(rank).sent.load(); }
  std::uint64_t heard(int rank) const noexcept { return of(rank).heard.load(); }

 private:
  struct Counts {
    std::atomic<std::uint64_t> sent{0}, heard{0};
  };
  Counts& of(int rank) noexcept { return counts_[static_cast<std::size_t>(rank)]; }
  const Counts& of(int rank) const noexcept { return counts_[static_cast<std::size_t>(rank)]; }

  std::vector<Counts> counts_;
};

}  // namespace vccl
