#include "transport/host/mapped_peers.hpp"

#include <sched.h>

#include <algorithm>
#include <thread>

#include "base/spinning.hpp"
#include "transport/block_hook.hpp"
#include "transport/host/given_up.hpp"
#include "transport/shared/taken_back.hpp"

namespace vccl {
namespace {

constexpr Milliseconds kWithdrawal{5'000};
// Phases of a rank that claims work items. In kSharing it may hold an item. In kShared it holds none, and all
// items are claimed.
constexpr std::uint32_t kSharing = Peers::kDone - 2, kShared = Peers::kDone - 1;

}  // namespace

MappedPeers::MappedPeers(const Group& group, const CurrentOperation& operation,
                         const FailureChannel& failures, Waiter& waiter, OperationStart& start)
    : group_(group),
      operation_(operation),
      failures_(failures),
      waiter_(waiter),
      start_(start),
      mappable_(
          std::ranges::none_of(group.host.regions, [](const auto& regions) { return regions.empty(); })),
      windows_(group.host.ranks.size()) {}

void MappedPeers::begin(const Announcement& announcement) {
  shows_ = announcement.shows;
  inline_ = is_inline(announcement);
}

bool MappedPeers::show(int peer) {
  const PeerWindow input = start_.window_of(peer, &OperationSlot::Windows::input);
  const PeerWindow output = start_.window_of(peer, &OperationSlot::Windows::output);
  windows_[static_cast<std::size_t>(peer)] = {{input.base, input.base ? input.size : 0},
                                              {output.base, output.base ? output.size : 0}};
  // An empty window has no address, and no peer has to reach it.
  return (input.base || input.size == 0) && (output.base || output.size == 0);
}

bool MappedPeers::all_mapped() {
  if (!shows_) return false;
  bool all = true;
  for (int peer = 0; peer < count(); ++peer) all = show(peer) && all;
  return all;
}

const std::byte* MappedPeers::payload(int peer) {
  if (inline_) return start_.announced(peer).payload;
  return group_.host.payload(peer, operation_.sequence());
}

void MappedPeers::arrive(std::uint32_t phase) {
  block_moved();
  // This store pairs with the loads of the ranks that await the phase. They see what this rank wrote before,
  // and may write to what this rank read before.
  group_.own_line().phase.store(number(phase));
  wake_others(group_.host);
}

void MappedPeers::await(int peer, std::uint32_t phase) {
  const RankLine& line = group_.host.line(peer);
  const std::uint64_t wanted = number(phase);
  // A rank that is ahead, in a later operation, has passed this phase too.
  waiter_.until([&] { return read(line.phase) >= wanted; }, peer, "in the midst of");
  // A rank that gives up counts as done (withdraw()), but only after it has recorded why.
  check_given_up(group_, operation_, failures_);
}

void MappedPeers::await_all(std::uint32_t phase) {
  const std::uint64_t wanted = number(phase);
  int arrived = 0;
  const auto ready = [&] {
    while (arrived < count() &&
           (arrived == group_.host.index || read(group_.host.line(arrived).phase) >= wanted))
      ++arrived;
    return arrived == count();
  };
  const auto awaited = [&](int peer) { return read(group_.host.line(peer).phase) < wanted; };
  waiter_.until(ready, awaited, "in the midst of");
  check_given_up(group_, operation_, failures_);
}

// A rank that gives up stores a phase that hides what it had said here: while this operation is under way, it
// stores one of a later operation only when it gives that one up.
bool MappedPeers::declined(int peer) {
  const std::uint64_t phase = read(group_.host.line(peer).phase);
  if (phase >= number(RankLine::kWithdrawn)) failures_.check();
  return phase == number(kDeclined);
}

// Sequences ascend: a claim that names a later operation means that this operation is over.
bool MappedPeers::claim(int peer) {
  auto& claimed = group_.host.line(peer).claimed;
  const std::uint64_t wanted = operation_.sequence();
  for (std::uint64_t seen = claimed.load(); seen < wanted;) {
    if (claimed.compare_exchange_weak(seen, wanted)) return true;
  }
  return false;
}

// The work items of ranks on this core are claimed first. The same core then does the same items from call to
// call, and finds in its cache what it wrote there.
int MappedPeers::claim_work_item() {
  check_given_up(group_, operation_, failures_);
  const int own = group_.host.index;
  // The phase is stored before the first claim, so a rank that finds an item claimed by this rank also finds
  // that this rank may hold it.
  auto& phase = group_.own_line().phase;
  if (phase.load(std::memory_order_relaxed) < number(kSharing)) phase.store(number(kSharing));
  if (claim(own)) return own;
  const int core = sched_getcpu();
  for (const bool here : {true, false}) {
    for (int step = 1; step < count(); ++step) {
      const int peer = (own + step) % count();
      const bool is_here = group_.host.line(peer).core.load(std::memory_order_relaxed) == core;
      if (is_here == here && claim(peer)) return peer;
    }
  }
  return -1;
}

// A count of an earlier operation stands for zero: all work items of that operation are done, and no rank
// will count there again.
void MappedPeers::deliver_work_item() {
  block_moved();
  auto& done = group_.host.work_items_done();
  const std::uint64_t none = number(0), all = number(static_cast<std::uint32_t>(count()));
  // The exchange pairs with the loads of the ranks that await the work items. Each count is a
  // read-modify-write of the count before it, so a rank that sees the last count sees what was written for
  // all of the items.
  std::uint64_t seen = done.load(), next;
  do next = std::max(seen, none) + 1;
  while (!done.compare_exchange_weak(seen, next));
  if (next == all) wake_others(group_.host);
}

void MappedPeers::await_work_items() {
  const std::uint64_t all = number(static_cast<std::uint32_t>(count()));
  const auto ready = [&] { return read(group_.host.work_items_done()) >= all; };
  group_.own_line().phase.store(number(kShared));
  for (int looks = base::looks_for_work_item(); looks > 0 && !ready(); --looks) base::cpu_pause();
  // All work items are claimed. A rank that has not begun to claim gets none, so it may come late or die.
  const auto awaited = [&](int peer) { return read(group_.host.line(peer).phase) == number(kSharing); };
  waiter_.until(ready, awaited, "in the midst of");
  check_given_up(group_, operation_, failures_);
  // Only a rank that withdraws waits for this phase. It polls, so no wake-up is needed.
  group_.own_line().phase.store(number(kDone));
}

void MappedPeers::finish() {
  if (shows_ && group_.own_line().phase.load(std::memory_order_relaxed) < number(Peers::kDone)) arrive(kDone);
}

bool MappedPeers::has_ended(int peer) const noexcept {
  const RankLine& line = group_.host.line(peer);
  // A rank that has not begun the operation will find that the communicator has failed
  // (OperationStart::pass).
  return read(start_.announced(peer).sequence) != operation_.sequence() ||
         read(line.phase) >= number(kDone) || read(line.state) == RankState::left ||
         group_.host.processes[static_cast<std::size_t>(peer)].dead();
}

void MappedPeers::withdraw() noexcept {
  // This is announced even if this rank showed no memory: the other ranks may have shown memory in an
  // operation that this rank did not call, and the right neighbour may be reading the window.
  arrive(RankLine::kWithdrawn);
  const Deadline deadline = Deadline::in(kWithdrawal);
  for (int peer = 0; shows_ && peer < count(); ++peer) {
    while (peer != group_.host.index && !has_ended(peer) && !deadline.passed()) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  announce_before_writes();
}

void MappedPeers::check_withdrawn() const {
  check_reads(group_, operation_, failures_);
}

}  // namespace vccl
