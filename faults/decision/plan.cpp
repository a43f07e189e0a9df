#include "faults/plan.hpp"

#include <algorithm>

#include "base/hash.hpp"

namespace vccl::faults {
namespace {

bool holds(const std::vector<Range>& ranges, std::int64_t number) {
  return ranges.empty() || std::ranges::any_of(ranges, [&](const Range& range) {
           return range.first <= number && number <= range.last;
         });
}

bool is_or_any(const std::string& wanted, std::string_view found) {
  return wanted.empty() || wanted == found;
}

/// Returns whether the buffers of the operation give the fault something to do.
bool can_strike(const Rule& rule, const Site& site) {
  if (rule.kind != Kind::corrupt && rule.kind != Kind::nan) return true;
  if (rule.kind == Kind::nan && !site.floating) return false;
  return rule.at == Moment::after ? site.writes : site.reads;
}

bool matches(const Rule& rule, const Identity& self, std::int64_t step, const Site& site) {
  if (rule.phase != site.phase || !can_strike(rule, site)) return false;
  if (!rule.op.empty() && !is_named(site.op, rule.op)) return false;
  // Products of matrices are places for this kind alone.
  if ((rule.kind == Kind::sdc) != (site.op == "matmul")) return false;
  if (!is_or_any(rule.host, self.host)) return false;
  if (!rule.group.empty() && rule.group != site.group && rule.group != site.description) return false;
  return holds(rule.ranks, self.rank) && holds(rule.steps, step) && holds(rule.restarts, self.restart);
}

/// Returns whether the rule strikes at the `count`-th place that it matches.
bool is_due(const Rule& rule, std::uint64_t count) {
  if (rule.every == 0) return rule.n == 0 || count == rule.n;
  if (rule.n == 0) return count % rule.every == 0;
  return count >= rule.n && (count - rule.n) % rule.every == 0;
}

/// Returns the number as one from 0 to below 1.
double fraction_of(std::uint64_t number) {
  return static_cast<double>(number >> 11) / static_cast<double>(std::uint64_t{1} << 53);
}

}  // namespace

std::uint64_t draw_of(std::uint64_t seed, std::uint64_t rule, std::uint64_t rank,
                      std::uint64_t count) noexcept {
  std::uint64_t result = 0;
  for (const std::uint64_t number : {seed, rule, rank, count})
    result = base::mix_bits(result ^ base::mix_bits(number));
  return result;
}

std::vector<Fault> Plan::decide(const Identity& self, std::int64_t step, const Site& site) {
  std::vector<Fault> faults;
  std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const Rule& rule = rules_[i];
    if (!matches(rule, self, step, site)) continue;
    const std::uint64_t count = ++counts_[i];
    if (!is_due(rule, count)) continue;
    const std::uint64_t draw = draw_of(seed_, i, static_cast<std::uint64_t>(self.rank), count);
    if (fraction_of(draw) >= rule.probability) continue;
    faults.push_back({i, rule.kind, rule.at, rule.amount, rule.type, base::mix_bits(draw)});
  }
  return faults;
}

}  // namespace vccl::faults
