#include "transport/rank_names.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "transport/support/error_text.hpp"

namespace vccl {
namespace {

constexpr std::size_t kMostListed = 8;
constexpr std::size_t kFirstListed = 4;

}  // namespace

std::string global_ranks_text(std::span<const std::uint64_t> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const bool all = ranks.size() <= kMostListed;
  for (std::size_t i = 0; i < (all ? ranks.size() : kFirstListed); ++i)
    text += base::text(i == 0 ? "" : ", ", ranks[i]);
  return all ? text : base::text(text, ", ... ", ranks.back(), " (", ranks.size(), " ranks)");
}

std::string RankNames::group_text(const std::string& name) {
  return std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; }) ? "group " + name : name;
}

std::uint64_t RankNames::in_job(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  return rank >= 0 && index < global_ranks_.size() ? global_ranks_[index] : static_cast<std::uint64_t>(rank);
}

std::string RankNames::rank(int rank, std::string_view remark) const {
  if (rank < 0) return base::text("rank ", rank);
  const std::uint64_t number = in_job(rank);
  std::string more;
  if (number != static_cast<std::uint64_t>(rank))
    more = base::text(rank, " of ", group_, ", ", global_ranks_text(global_ranks_));
  if (!remark.empty()) more += base::text(more.empty() ? "" : "; ", remark);
  return more.empty() ? base::text("rank ", number) : base::text("rank ", number, " (", more, ")");
}

std::string RankNames::of_group(int rank) const {
  const bool same = rank < 0 || in_job(rank) == static_cast<std::uint64_t>(rank);
  return same ? base::text("rank ", rank, " of group ", name_) : this->rank(rank);
}

std::string RankNames::number(int rank) const {
  const std::uint64_t number = in_job(rank);
  if (rank < 0 || number == static_cast<std::uint64_t>(rank)) return base::text(rank);
  return base::text(number, " (", rank, " of ", group_, ")");
}

std::string RankNames::ranks(std::span<const int> ranks) const {
  const bool same = std::ranges::all_of(
      ranks, [this](int rank) { return in_job(rank) == static_cast<std::uint64_t>(rank); });
  const std::string text = base::text(ranks.size() == 1 ? "rank " : "ranks ", numbers(ranks));
  return same ? text : base::text(text, " (", numbers_text(ranks), " of ", group_, ")");
}

std::string RankNames::numbers(std::span<const int> ranks) const {
  std::string text;
  for (int rank : ranks) text += base::text(text.empty() ? "" : ", ", in_job(rank));
  return text;
}

}  // namespace vccl
