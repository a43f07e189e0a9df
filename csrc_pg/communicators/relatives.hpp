// What a process's existing communicators know about the ranks of a communicator that it is about to make.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/communicator.hpp"
#include "transport/earlier.hpp"

namespace vccl {

/// Describes an existing communicator.
struct Relative {
  std::weak_ptr<Communicator> communicator;
  std::vector<std::uint64_t> global_ranks;  // the global ranks of its ranks
  bool of_same_group;
};

class Relatives final : public Earlier {
 public:
  /// `global_ranks` are those of the new communicator's ranks.
  Relatives(std::vector<Relative> relatives, const std::vector<std::uint64_t>& global_ranks);

  void check() override;
  std::optional<RankEnd> end_of(int rank) override;
  std::string deaths() override;

 private:
  struct Known {
    Relative relative;
    std::vector<int> rank_there;  // for each rank of the new communicator, its rank in the relative, or -1 if
                                  // it is not in there
  };
  std::vector<Known> known_;
};

}  // namespace vccl
