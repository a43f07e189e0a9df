#include "transport/support/rank_names.hpp"

#include "base/text.hpp"

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

}  // namespace vccl
