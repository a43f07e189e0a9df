#include "transport/links/host_watch.hpp"

#include <pthread.h>

#include <system_error>
#include <utility>

#include "base/periods.hpp"
#include "base/signals.hpp"
#include "base/text.hpp"
#include "transport/state/lost_ranks.hpp"

namespace vccl {

HostWatch::HostWatch(const Group& group, const CurrentOperation& operation, FailureChannel& failures,
                     std::function<void()> listen, std::function<std::optional<RankEnd>(int)> end_of)
    : group_(group),
      operation_(operation),
      failures_(failures),
      listen_(std::move(listen)),
      end_of_(std::move(end_of)) {
  base::SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::system, base::text("the thread that watches other hosts: ", error.what()));
  }
}

HostWatch::~HostWatch() {
  {
    std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void HostWatch::run() {
  pthread_setname_np(pthread_self(), "vccl hosts");
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, base::kWatchPeriod, [this] { return over_; })) {
    lock.unlock();
    look();
    lock.lock();
  }
}

void HostWatch::look() {
  note_dead_ranks_of_host();
  // A rank that has begun an operation since the last look has read what the links brought, and is not
  // disturbed.
  const std::uint64_t begun = operation_.sequence();
  const bool used = std::exchange(seen_, begun) != begun;
  if (!used) listen_();
  if (used || !operation_.under_way()) operation_stuck_.reset();
  fail_for_lost();
}

void HostWatch::note_dead_ranks_of_host() {
  LostRanks lost(group_);
  for (const int rank : group_.host.ranks) {
    if (rank == group_.rank || lost.contains(rank)) continue;
    if (const auto end = group_.end_of(rank); end && end->how != RankEnd::How::left) lost.add(rank);
  }
}

void HostWatch::fail_for_lost() {
  if (failures_.happened() || !operation_.under_way()) return;
  const LostRanks lost(group_);
  for (int i = 0; const auto rank = lost.at(i); ++i) {
    const auto end = *rank == group_.rank ? std::nullopt : end_of_(*rank);
    if (!end || end->how == RankEnd::How::left) continue;
    if (!operation_stuck_) operation_stuck_ = Clock::now();
    if (Clock::now() - *operation_stuck_ < kLongLost) return;
    return failures_.fail_for_end(
        ErrorCode::peer_dead,
        base::text(end->text(group_.names, *rank), ", which ", group_.own_text(), " heard in operation ",
                   operation_.sequence(), " of group ", group_.name));
  }
}

}  // namespace vccl
