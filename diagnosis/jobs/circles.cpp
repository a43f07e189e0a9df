#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "diagnosis/job.hpp"
#include "diagnosis/jobs/call_texts.hpp"
#include "diagnosis/jobs/job_table.hpp"

namespace vccl {
namespace {

// A search from each of so many collectives, and along so many later calls of a rank, finds a circle that a
// few neighbouring calls close. Both bound the time where all calls of a long run are in circles.
constexpr std::size_t kMostStarts = 16;
constexpr std::size_t kFarthest = 64;

/// Is a collective. The calls of all ranks of its group meet in it.
using Node = std::size_t;

/// What one rank has called, in its order.
struct Chain {
  struct Call {
    Node node;
    std::size_t entry;  // in the rank's snapshot
  };
  const JobRank* rank;
  std::vector<Call> calls;
};

/// A call of a collective.
struct Place {
  const Chain* chain;
  std::size_t at;  // in the chain's calls
};

/// A call of one rank before another one of the same rank.
struct Step {
  const Chain* chain = nullptr;
  std::size_t from = 0, to = 0;  // in the chain's calls

  const Chain::Call& first() const { return chain->calls[from]; }
  const Chain::Call& second() const { return chain->calls[to]; }
};

/// Returns the place in the job of a group that one of its ranks has recorded.
std::size_t place_of(const Job& job, const FlightGroup& group) {
  const auto found =
      std::ranges::find_if(job.groups, [&](const JobGroup& other) { return is_same(other, group); });
  return static_cast<std::size_t>(found - job.groups.begin());
}

/// All collectives, and which of them a rank has called before which other.
class CallGraph {
 public:
  explicit CallGraph(const Job& job) {
    chains_.reserve(job.ranks.size());
    for (const auto& [number, rank] : job.ranks) add(job, rank);
    for (const Chain& chain : chains_)
      for (std::size_t i = 0; i < chain.calls.size(); ++i)
        places_[chain.calls[i].node].push_back({&chain, i});
    in_circles_.assign(nodes_.size(), true);
    drop_what_ends_nowhere(false);
    drop_what_ends_nowhere(true);
  }

  /// Returns the steps of a circle, or nothing if there is none.
  std::vector<Step> shortest_circle() const {
    std::vector<Step> best;
    for (const Node start : oldest()) {
      auto found = circle_from(start);
      if (!found.empty() && (best.empty() || found.size() < best.size())) best = std::move(found);
      if (best.size() == 2) break;
    }
    return best;
  }

 private:
  void add(const Job& job, const JobRank& rank) {
    Chain chain{&rank, {}};
    std::map<std::uint32_t, std::size_t> groups;  // by their serial numbers
    std::set<Node> called;
    const auto& entries = rank.snapshot.entries;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const FlightEntry& entry = entries[i];
      if (entry.place_in_order == 0 || entry.is(FlightEntry::kReplayed)) continue;
      auto group = groups.find(entry.group_serial);
      if (group == groups.end())
        group = groups.emplace(entry.group_serial, place_of(job, rank.snapshot.group_of(entry).group)).first;
      const Node node =
          nodes_.emplace(std::pair(group->second, entry.place_in_order), nodes_.size()).first->second;
      if (called.insert(node).second) chain.calls.push_back({node, i});
    }
    places_.resize(nodes_.size());
    chains_.push_back(std::move(chain));
  }

  /// Drops the collectives that nothing left comes before; `backwards`, those that nothing left comes behind.
  void drop_what_ends_nowhere(bool backwards) {
    std::vector<std::size_t> left(nodes_.size());
    std::deque<Node> free;
    const auto neighbour = [&](const Place& place, bool back) -> const Chain::Call* {
      const auto& calls = place.chain->calls;
      if (back && place.at == 0) return nullptr;
      const std::size_t at = back ? place.at - 1 : place.at + 1;
      return at < calls.size() && in_circles_[calls[at].node] ? &calls[at] : nullptr;
    };
    for (Node node = 0; node < places_.size(); ++node) {
      if (!in_circles_[node]) continue;
      left[node] = static_cast<std::size_t>(std::ranges::count_if(
          places_[node], [&](const Place& place) { return neighbour(place, !backwards) != nullptr; }));
      if (left[node] == 0) free.push_back(node);
    }
    for (; !free.empty(); free.pop_front()) {
      for (const Place& place : places_[free.front()]) {
        const auto* next = neighbour(place, backwards);
        if (next && --left[next->node] == 0) free.push_back(next->node);
      }
      in_circles_[free.front()] = false;
    }
  }

  /// Returns the collectives from which a circle is looked for.
  std::vector<Node> oldest() const {
    std::vector<std::pair<std::int64_t, Node>> found;
    for (Node node = 0; node < places_.size(); ++node) {
      if (!in_circles_[node]) continue;
      const auto& [chain, at] = places_[node].front();
      found.emplace_back(chain->rank->snapshot.entries[chain->calls[at].entry].created_ns, node);
    }
    std::ranges::sort(found);
    std::vector<Node> nodes;
    for (std::size_t i = 0; i < std::min(found.size(), kMostStarts); ++i) nodes.push_back(found[i].second);
    return nodes;
  }

  /// Searches in breadth, so that the first circle found is a shortest one.
  std::vector<Step> circle_from(Node start) const {
    std::map<Node, Step> came_by;
    std::deque<Node> next{start};
    for (; !next.empty(); next.pop_front()) {
      for (const auto& [chain, from] : places_[next.front()]) {
        const std::size_t end = std::min(chain->calls.size(), from + kFarthest);
        for (std::size_t to = from + 1; to < end; ++to) {
          const Node node = chain->calls[to].node;
          if (!in_circles_[node] || came_by.contains(node)) continue;
          came_by[node] = {chain, from, to};
          if (node == start) return way_back(came_by, start);
          next.push_back(node);
        }
      }
    }
    return {};
  }

  static std::vector<Step> way_back(const std::map<Node, Step>& came_by, Node start) {
    std::vector<Step> steps;
    Node node = start;
    do {
      steps.push_back(came_by.at(node));
      node = steps.back().first().node;
    } while (node != start);
    std::ranges::reverse(steps);
    return steps;
  }

  std::vector<Chain> chains_;
  std::map<std::pair<std::size_t, std::uint64_t>, Node> nodes_;  // by group and place in the order
  std::vector<std::vector<Place>> places_;                       // of each node
  std::vector<bool> in_circles_;                                 // or between two circles
};

/// Returns "all_reduce(float32 [4]), collective 2 of group dp, in step (train.py:19)".
std::string full_text(const Job& job, const JobRank& rank, std::size_t at, const DiagnosisOptions& options) {
  const FlightEntry& entry = rank.snapshot.entries[at];
  const JobGroup& group = job.groups[place_of(job, rank.snapshot.group_of(entry).group)];
  return base::text(entry_text(entry, options), ", collective ", entry.collective_sequence, " of group ",
                    unique_name(job, group), place_text(rank, at));
}

}  // namespace

std::string circle_text(const Job& job, const DiagnosisOptions& options) {
  const CallGraph graph(job);
  const auto steps = graph.shortest_circle();  // they point into the graph
  if (steps.empty()) return {};
  std::string text =
      "On GPUs this may deadlock: all ranks must use their groups in the same order (VCCL_CHECK=order).";
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    const JobRank& rank = *step.chain->rank;
    if (i == 1 && steps.size() == 2) {
      text +=
          base::text(" Rank ", rank.rank, " called the latter first", place_text(rank, step.first().entry),
                     ", and then the former", place_text(rank, step.second().entry), ".");
    } else {
      text += base::text(" Rank ", rank.rank, " called ", full_text(job, rank, step.first().entry, options),
                         ", before ", full_text(job, rank, step.second().entry, options), ".");
    }
  }
  return text;
}

}  // namespace vccl
