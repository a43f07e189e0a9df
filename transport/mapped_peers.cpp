#include "transport/mapped_peers.hpp"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace vccl {
namespace {

constexpr Milliseconds kWithdrawal{5'000};
constexpr int kLooksForShares = 300;  // some microseconds
// Phases of a rank that claims shares: it may hold one; it holds none, and all are claimed.
constexpr std::uint32_t kSharing = Peers::kDone - 2, kShared = Peers::kDone - 1;

}  // namespace

MappedPeers::MappedPeers(Group& group, Waiter& waiter, Gate& gate)
    : group_(group),
      waiter_(waiter),
      gate_(gate),
      mappable_(
          std::ranges::none_of(group.host.regions, [](const auto& regions) { return regions.empty(); })),
      windows_(group.host.ranks.size()) {}

void MappedPeers::begin(const Announcement& announcement) {
  shows_ = announcement.shows;
  inline_ = is_inline(announcement);
}

bool MappedPeers::show(int rank) {
  const PeerWindow input = gate_.window_of(rank, &OperationSlot::Windows::input);
  const PeerWindow output = gate_.window_of(rank, &OperationSlot::Windows::output);
  windows_[static_cast<std::size_t>(rank)] = {{input.base, input.base ? input.size : 0},
                                              {output.base, output.base ? output.size : 0}};
  // An empty window lies nowhere, and nobody has to reach it.
  return (input.base || input.size == 0) && (output.base || output.size == 0);
}

bool MappedPeers::all_mapped() {
  if (!shows_) return false;
  bool all = true;
  for (int rank = 0; rank < ranks(); ++rank) all = show(rank) && all;
  return all;
}

const std::byte* MappedPeers::payload(int rank) {
  if (inline_) return gate_.announced(rank).payload;
  return group_.host.payload(rank, group_.sequence.load(std::memory_order_relaxed));
}

void MappedPeers::arrive(std::uint32_t phase) {
  // Pairs with the loads of those who await it: they see what was written before, and write to what was read
  // before.
  group_.own_line().phase.store(number(phase));
  group_.wake_others();
}

void MappedPeers::await(int rank, std::uint32_t phase) {
  const RankLine& line = group_.host.line(rank);
  const std::uint64_t wanted = number(phase);
  // A rank that is ahead, in a later operation, has been here too.
  waiter_.until([&] { return read(line.phase) >= wanted; }, rank, "in the midst of");
  // A rank that gave up counts as done (withdraw), after it has recorded why.
  group_.check();
}

void MappedPeers::await_all(std::uint32_t phase) {
  const std::uint64_t wanted = number(phase);
  int arrived = 0;
  const auto ready = [&] {
    while (arrived < ranks() &&
           (arrived == group_.host.index || read(group_.host.line(arrived).phase) >= wanted))
      ++arrived;
    return arrived == ranks();
  };
  const auto awaited = [&](int rank) { return read(group_.host.line(rank).phase) < wanted; };
  waiter_.until(ready, awaited, "in the midst of");
  group_.check();
}

// Sequences ascend: a claim that names a later operation says that this one is over.
bool MappedPeers::claim(int rank) {
  auto& claimed = group_.host.line(rank).claimed;
  const std::uint64_t wanted = group_.sequence.load(std::memory_order_relaxed);
  for (std::uint64_t seen = claimed.load(); seen < wanted;) {
    if (claimed.compare_exchange_weak(seen, wanted)) return true;
  }
  return false;
}

// The shares of ranks on this core first: the same core does the same shares then from call to call, and
// finds in its cache what it wrote there.
int MappedPeers::claim_share() {
  group_.check();
  const int own = group_.host.index;
  // Before the first claim: whoever finds that we have claimed a share finds that we may hold it.
  auto& phase = group_.own_line().phase;
  if (phase.load(std::memory_order_relaxed) < number(kSharing)) phase.store(number(kSharing));
  if (claim(own)) return own;
  const int core = sched_getcpu();
  for (const bool here : {true, false}) {
    for (int step = 1; step < ranks(); ++step) {
      const int rank = (own + step) % ranks();
      const bool is_here = group_.host.line(rank).core.load(std::memory_order_relaxed) == core;
      if (is_here == here && claim(rank)) return rank;
    }
  }
  return -1;
}

// A count of an earlier operation stands for none: all of its shares are done, and nobody counts there again.
void MappedPeers::deliver_share() {
  auto& done = group_.host.shares_done();
  const std::uint64_t none = number(0), all = number(static_cast<std::uint32_t>(ranks()));
  // Pairs with the loads of those who await the shares. Each count is a read-modify-write of the one before,
  // so whoever sees the last one sees what was written for all of them.
  std::uint64_t seen = done.load(), next;
  do next = std::max(seen, none) + 1;
  while (!done.compare_exchange_weak(seen, next));
  if (next == all) group_.wake_others();
}

void MappedPeers::await_shares() {
  const std::uint64_t all = number(static_cast<std::uint32_t>(ranks()));
  const auto ready = [&] { return read(group_.host.shares_done()) >= all; };
  group_.own_line().phase.store(number(kShared));
  // Whoever is not done yet most likely runs on another core, and is as far as we are. To let another rank in
  // now costs two switches: it would find that it has to wait too.
  for (int i = 0; i < kLooksForShares && !ready(); ++i) relax();
  // All shares are claimed, so a rank that has not begun to claim gets none, and may come late, or die.
  const auto awaited = [&](int rank) { return read(group_.host.line(rank).phase) == number(kSharing); };
  waiter_.until(ready, awaited, "in the midst of");
  group_.check();
  // Only a rank that withdraws waits for it, and that one looks by itself.
  group_.own_line().phase.store(number(kDone));
}

void MappedPeers::finish() {
  if (shows_ && group_.own_line().phase.load(std::memory_order_relaxed) < number(Peers::kDone)) arrive(kDone);
}

bool MappedPeers::has_ended(int rank) const noexcept {
  const RankLine& line = group_.host.line(rank);
  // Whoever has not begun yet will find that the group has failed (Gate::pass).
  return read(gate_.announced(rank).sequence) != group_.sequence.load(std::memory_order_relaxed) ||
         read(line.phase) >= number(kDone) || read(line.state) == RankState::left ||
         group_.host.processes[static_cast<std::size_t>(rank)].dead();
}

void MappedPeers::withdraw() noexcept {
  // Said even where nothing was shown: the others may have shown something, in an operation that we did not
  // call.
  arrive(kDone);
  if (!shows_) return;
  const Deadline deadline = Deadline::in(kWithdrawal);
  for (int rank = 0; rank < ranks(); ++rank) {
    while (rank != group_.host.index && !has_ended(rank) && !deadline.passed()) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
}

}  // namespace vccl
