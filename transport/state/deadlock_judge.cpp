// Finds the processes that wait for each other in what all have published, and ends their waits.
#include <algorithm>

#include "base/text.hpp"
#include "transport/state/deadlock_state.hpp"

namespace vccl {
namespace {

// How many looks a member that has concluded waits for the others to conclude. They conclude at about the
// same time, unless the machine gives one of them no time.
constexpr int kPatience = 50;
// After how many looks a circle that cannot be proved is worth a warning.
constexpr std::uint64_t kDoubtful = 20;

}  // namespace

/// Returns this process's record, those of the processes that it waits for, directly or not, and those of the
/// members of the verdict. The others cannot be in one circle with this process, and to read them all would
/// cost each rank of a large group more than its turn. Adds those on other hosts to `unknown`: all of them,
/// as what is known gets old. The caller holds the lock.
Records DeadlockWatch::State::read_records(std::vector<Token>& unknown) const {
  Records records;
  records[token] = {version, looks, verdict.has_value(), 0, published};
  std::vector<Token> left;
  const auto add_awaited = [&left](const PublishedWaits& waits) {
    for (std::uint32_t i = 0; i < waits.count; ++i) {
      const auto& awaited = waits.waits[i].awaited;
      left.insert(left.end(), awaited.begin(), awaited.begin() + waits.waits[i].awaited_count);
    }
  };
  add_awaited(published);
  if (verdict)
    for (const auto& member : verdict->versions) left.push_back(member.first);
  if (left.empty()) return records;
  const auto lines = lines_by_token();
  while (!left.empty()) {
    const Token other = left.back();
    left.pop_back();
    if (other == 0 || records.contains(other)) continue;
    const auto line = std::ranges::lower_bound(lines, other, {}, &TokenLine::first);
    const bool is_here = line != lines.end() && line->first == other;
    if (!is_here) unknown.push_back(other);
    const auto there = far.find(other);
    if (!is_here && there == far.end()) continue;
    const auto record = is_here ? line->second->waits.read() : there->second.copy;
    if (record.version == 0) continue;
    add_awaited(record.waits);
    records[other] = record;
  }
  return records;
}

/// Returns a line of each process that shares a communicator with this one, by token. The caller holds the
/// lock.
std::vector<DeadlockWatch::State::TokenLine> DeadlockWatch::State::lines_by_token() const {
  std::vector<TokenLine> lines;
  for (const Known& known : communicators) {
    const HostGroup& host = known.group->host;
    for (int i = 0; i < static_cast<int>(host.ranks.size()); ++i)
      lines.emplace_back(read(host.line(i).process), &host.line(i));
  }
  // A process's lines have the same record.
  std::ranges::sort(lines, {}, &TokenLine::first);
  return lines;
}

/// The caller holds the lock.
void DeadlockWatch::State::judge() {
  std::vector<Token> unknown;
  const Records records = read_records(unknown);
  const auto circle = awaited_from(token, waiting_for_each_other(records, false), records);
  in_circle = !circle.empty();
  if (verdict) {
    if (all_members_know(records)) return carry_out();
  } else {
    conclude(circle, records);
  }
  exchange_with_other_hosts(unknown);
}

/// Concludes a deadlock if it is proved. The caller holds the lock.
void DeadlockWatch::State::conclude(const std::set<Token>& circle, const Records& records) {
  const auto members = awaited_from(token, waiting_for_each_other(records, true), records);
  if (!candidate.have_held(members, records, 2, rounds)) return warn_once(circle, records);
  verdict.emplace();
  verdict->text = base::text(
      "the ranks wait for each other in different calls, and none of them can go on: ",
      calls_text(members, records),
      ". Every rank must call the collectives of all its groups, on the CPU and on cards, in the "
      "same order, and each send needs a receive with its tag that the peer comes to before it waits "
      "for something else (batch_isend_irecv starts several at once).");
  for (const Token member : members) {
    verdict->versions[member] = records.at(member).version;
    const PublishedWaits& waits_of = records.at(member).waits;
    for (std::uint32_t i = 0; i < waits_of.count; ++i)
      verdict->communicators.insert(waits_of.waits[i].communicator);
  }
  for (const Known& known : communicators) known.group->own_line().waits.set_concluded(true);
}

/// Warns once about a circle that another thread of a member might still end. Messages alone are no reason:
/// ranks may well post receives and compute. The caller holds the lock.
void DeadlockWatch::State::warn_once(const std::set<Token>& members, const Records& records) {
  if (waits.empty() || !doubtful.have_held(members, records, kDoubtful, rounds) || warned == version) return;
  warned = version;
  const std::string text =
      base::text("the ranks wait for each other in different calls: ", calls_text(members, records),
                 ". They will wait until the timeout, unless another of their threads brings an end.");
  communicators.front().group->log.warn(text);
}

/// Returns whether all members have concluded the deadlock, or have had enough time to. The caller holds the
/// lock.
bool DeadlockWatch::State::all_members_know(const Records& records) {
  // A member whose record has changed has already failed the communicators, or its process has ended.
  const auto& versions = verdict->versions;
  const bool all_know = std::all_of(versions.begin(), versions.end(), [&](const auto& member) {
    const auto found = records.find(member.first);
    return found == records.end() || found->second.version != member.second || found->second.concluded;
  });
  return all_know || ++verdict->looks >= kPatience;
}

/// The caller holds the lock.
void DeadlockWatch::State::carry_out() {
  for (const Known& known : communicators) {
    if (verdict->communicators.contains(known.group->id))
      known.failures->fail(ErrorCode::mismatch, verdict->text);
  }
  verdict.reset();
}

}  // namespace vccl
