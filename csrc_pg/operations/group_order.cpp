#include "csrc_pg/operations/group_order.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "base/fork.hpp"
#include "base/hash.hpp"

namespace vccl {

namespace {

using Ranks = std::vector<std::uint64_t>;

bool contains(const Ranks& ranks, const Ranks& others) {
  return std::ranges::includes(ranks, others);
}

}  // namespace

/// What groups that were destroyed add to the sums of the groups that they contain.
struct GroupOrder::Past {
  std::uint64_t sum = 0;
  bool failed = false;

  void add(const Past& other) {
    sum += other.sum;
    failed |= other.failed;
  }
};

struct GroupOrder::Member {
  std::uint64_t name = 0;  // its hash
  Ranks ranks;             // sorted
  std::uint64_t calls = 0;
  std::atomic<bool> failed{false};
  Past past;                                        // of the groups that contained this one
  std::vector<std::shared_ptr<Member>> containing;  // those that are there

  /// A group without calls adds nothing, so it does not matter which ranks have made it already.
  Past share() const {
    return {calls > 0 ? base::mix_bits(name ^ calls) : 0, failed.load(std::memory_order_relaxed)};
  }
};

/// The groups of this process. The mutex also guards the members, so that one thread's call is wholly before
/// or behind another's.
struct GroupOrder::Members {
  std::mutex mutex;
  std::vector<std::shared_ptr<Member>> all;
  std::map<Ranks, Past> past;         // of destroyed groups, by their ranks: there are few different ones
  std::uint64_t jobs = 0;             // how many default groups there were
  std::atomic<std::size_t> used = 0;  // how many groups of this job had a call

  static Members& of_this_process() {
    static base::OnePerProcess<Members> one;
    return one.get();
  }
};

GroupOrder::GroupOrder(const std::string& name, Ranks ranks, bool begins_job)
    : own_(std::make_shared<Member>()) {
  std::ranges::sort(ranks);
  own_->name = base::hash_text(name);
  own_->ranks = std::move(ranks);
  auto& members = Members::of_this_process();
  std::lock_guard lock(members.mutex);
  if (begins_job) {
    members.all.clear();
    members.past.clear();
    members.used.store(0, std::memory_order_relaxed);
    ++members.jobs;
  }
  for (const auto& [ranks_before, past] : members.past)
    if (contains(ranks_before, own_->ranks)) own_->past.add(past);
  for (const auto& other : members.all) {
    if (contains(other->ranks, own_->ranks)) own_->containing.push_back(other);
    if (contains(own_->ranks, other->ranks)) other->containing.push_back(own_);
  }
  members.all.push_back(own_);
}

GroupOrder::~GroupOrder() {
  auto& members = Members::of_this_process();
  std::lock_guard lock(members.mutex);
  own_->containing.clear();  // two groups of the same ranks would keep each other
  if (std::erase(members.all, own_) == 0)
    return;  // of an earlier job, or of the process that forked this one
  const Past share = own_->share();
  for (const auto& other : members.all)
    if (std::erase(other->containing, own_) > 0) other->past.add(share);
  members.past[own_->ranks].add(share);
}

GroupOrder::Place GroupOrder::next(std::size_t calls) {
  auto& members = Members::of_this_process();
  std::lock_guard lock(members.mutex);
  Place place;
  // Groups of different jobs may have the same names.
  place.first = (members.jobs << 40) + own_->calls + 1;
  if (own_->calls == 0 && calls > 0) members.used.fetch_add(1, std::memory_order_relaxed);
  own_->calls += calls;
  Past sum = own_->past;  // a sum, because ranks may have made the groups in different orders
  for (const auto& other : own_->containing) sum.add(other->share());
  if (!sum.failed) place.number = static_cast<std::uint32_t>(base::mix_bits(sum.sum) >> 32) | 1;
  return place;
}

bool GroupOrder::uses_several() noexcept {
  return Members::of_this_process().used.load(std::memory_order_relaxed) > 1;
}

std::shared_ptr<std::atomic<bool>> GroupOrder::failure_mark(
    const std::shared_ptr<GroupOrder>& order) noexcept {
  return {order, &order->own_->failed};
}

// Relaxed: whoever has seen the failure has seen the end of the operation that failed, and the mark before
// it.
void GroupOrder::note_failure() noexcept {
  own_->failed.store(true, std::memory_order_relaxed);
}

bool GroupOrder::any_failed() noexcept {
  auto& members = Members::of_this_process();
  std::lock_guard lock(members.mutex);
  return std::ranges::any_of(
             members.all,
             [](const auto& member) { return member->failed.load(std::memory_order_relaxed); }) ||
         std::ranges::any_of(members.past, [](const auto& entry) { return entry.second.failed; });
}

}  // namespace vccl
