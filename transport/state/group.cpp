#include "transport/state/group.hpp"

#include <algorithm>

#include "transport/host/flags.hpp"

namespace vccl {

void Group::fail(ErrorCode code, const std::string& what) const noexcept {
  if (!failure().record(code, what)) return;
  log.warn(std::string(to_string(code)) + ": " + what);
  for (int i = 0; i < static_cast<int>(host.ranks.size()); ++i) wake(host.line(i));
  for (std::size_t i = 0; i < host.ranks.size(); ++i) wake_messages(host.messages().line(i), true);
  if (spread_failure) spread_failure();
}

std::optional<RankEnd> Group::end_of(int rank) const noexcept {
  const auto found = std::ranges::find(host.ranks, rank);
  if (found == host.ranks.end()) {
    const auto other = elsewhere.find(rank);
    if (other == elsewhere.end() || !other->second.dead()) return std::nullopt;
    return RankEnd{RankEnd::How::ended, other->second.pid()};
  }
  const auto index = static_cast<int>(found - host.ranks.begin());
  const PeerProcess& process = host.processes[static_cast<std::size_t>(index)];
  // The order matters: a rank leaves before its process ends, so a rank seen dead has already set its state.
  const bool dead = process.dead();
  if (read(host.line(index).state) == RankState::left)
    return RankEnd{RankEnd::How::left, process.pid(), dead};
  if (!dead) return std::nullopt;
  return RankEnd{RankEnd::How::died, process.pid()};
}

void Group::fail_for_end(ErrorCode code, const std::string& what) const noexcept {
  if (failure().happened()) return;
  std::string dead;
  const auto add = [&dead](const std::string& more) { dead += (dead.empty() ? "" : "; ") + more; };
  for (int other = 0; other < size; ++other) {
    if (other == rank || what.starts_with("rank " + std::to_string(other) + " (")) continue;
    const auto end = end_of(other);
    if (end && end->how != RankEnd::How::left) add(end->text(other));
  }
  if (earlier) {
    if (const std::string deaths = earlier->deaths(); !deaths.empty()) add(deaths);
  }
  if (dead.empty()) return fail(code, what);
  fail(ErrorCode::peer_dead, code == ErrorCode::peer_dead ? what + "; " + dead : dead + "; " + what);
}

void Group::raise(ErrorCode code, const std::string& what) const {
  fail(code, what);
  throw failure().error();
}

void Group::raise_interrupted(const std::string& by, const std::string& whom, const char* what) const {
  raise(ErrorCode::aborted, "rank " + std::to_string(rank) + " was interrupted by " + by +
                                " while it waited for " + whom + " " + what + " " + operation_text() +
                                ", and aborted the group");
}

void Group::raise_for_end(ErrorCode code, const std::string& what) const {
  fail_for_end(code, what);
  throw failure().error();
}

std::string Group::left_text(int other, const std::string& reason) const {
  const std::string text = "rank " + std::to_string(other) + " left group " + name;
  return reason.empty() ? text : text + " (after a failure elsewhere: " + reason + ")";
}

std::string Group::left_text(int index) const {
  return left_text(host.ranks[static_cast<std::size_t>(index)], host.line(index).leave_reason.read());
}

std::string Group::describe_signature(const Signature& signature) const {
  if (describe) return describe(signature);
  return "collective " + std::to_string(signature.collective) + "(dtype " + std::to_string(signature.dtype) +
         ", " + std::to_string(signature.count) + " elements, op " + std::to_string(signature.op) +
         ", root " + std::to_string(signature.root) + ", extra " + std::to_string(signature.extra) + ")";
}

std::string Group::call_text() const {
  return describe_signature(signature) + (device.empty() ? "" : " on " + device) + ", operation " +
         std::to_string(sequence.load(std::memory_order_relaxed)) + " of group " + name;
}

std::string Group::operation_text() const {
  const std::uint64_t number = sequence.load(std::memory_order_relaxed);
  if (number == 0) return "the meeting of group " + name;
  return describe_signature(signature) + " (operation " + std::to_string(number) + " of group " + name + ")";
}

}  // namespace vccl
