// How texts call ranks: by their numbers in the job, because the reader knows no others.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vccl {

/// Returns "rank 3" or "ranks 0, 1, 2". Of more than eight ranks, the text has the first ones, the last one
/// and their number.
std::string global_ranks_text(std::span<const std::uint64_t> ranks);

/// Calls the ranks of one group. The arguments are ranks of the group; numbers outside of it are called as
/// they are, because texts about wrong numbers name them too.
class RankNames {
 public:
  /// The ranks have the same numbers in the group as in the job.
  RankNames() = default;
  /// `global_ranks` has the numbers in the job of the group's ranks, in the group's order. If it is empty,
  /// they are those in the group.
  RankNames(const std::string& group, std::vector<std::uint64_t> global_ranks)
      : name_(group), group_(group_text(group)), global_ranks_(std::move(global_ranks)) {}

  /// Returns the number in the job.
  std::uint64_t in_job(int rank) const;
  /// Returns "rank 3", or where the number in the group differs "rank 3 (1 of mesh_tp, ranks 2, 3)". A
  /// remark goes into the brackets: "rank 3 (pid 77)", "rank 3 (1 of mesh_tp, ranks 2, 3; pid 77)".
  std::string rank(int rank, std::string_view remark = {}) const;
  /// Returns "rank 3 of group mesh_tp", or where the number in the group is another one what rank() returns,
  /// which names the group already.
  std::string of_group(int rank) const;
  /// Returns "3", or where the number in the group differs "3 (1 of mesh_tp)".
  std::string number(int rank) const;
  /// Returns "ranks 2, 3", or "ranks 2, 3 (0, 1 of mesh_tp)" if a number in the group differs.
  std::string ranks(std::span<const int> ranks) const;
  /// Returns the numbers in the job: "2, 3".
  std::string numbers(std::span<const int> ranks) const;

 private:
  /// Returns the name, or "group 2" for a name that is a number, which torch gives to groups without a
  /// description.
  static std::string group_text(const std::string& name);

  std::string name_;
  std::string group_;  // group_text()
  std::vector<std::uint64_t> global_ranks_;
};

}  // namespace vccl
