#include "csrc_pg/operations/group_order.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/fork.hpp"

namespace vccl {

struct GroupOrder::Member {
  std::string name;
  std::vector<std::uint64_t> ranks;  // sorted
  std::uint64_t calls = 0;
  bool left_out = false;

  bool contains(const Member& other) const { return std::ranges::includes(ranks, other.ranks); }
};

namespace {

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e37'79b9'7f4a'7c15;
  return hash ^ (hash >> 29);
}

/// Returns a number that is the same in every process, unlike that of std::hash.
std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = text.size();
  for (const char letter : text) hash = mixed(hash, static_cast<unsigned char>(letter));
  return hash;
}

}  // namespace

/// The groups of this process. The mutex also guards the members, so that one thread's call is wholly before
/// or behind another's.
struct GroupOrder::Members {
  std::mutex mutex;
  std::vector<std::shared_ptr<Member>> all;

  static Members& of_this_process() {
    static base::OnePerProcess<Members> one;
    return one.get();
  }
};

GroupOrder::GroupOrder(std::string name, std::vector<std::uint64_t> ranks, bool makes_new_job)
    : own_(std::make_shared<Member>()) {
  std::ranges::sort(ranks);
  own_->name = std::move(name);
  own_->ranks = std::move(ranks);
  auto& [mutex, all] = Members::of_this_process();
  std::lock_guard lock(mutex);
  if (makes_new_job) all.clear();
  // Of a group that was destroyed and made again, the calls count from 0 on all ranks.
  std::erase_if(all,
                [&](const auto& other) { return other->name == own_->name && other->ranks == own_->ranks; });
  all.push_back(own_);
}

std::uint32_t GroupOrder::next() {
  auto& [mutex, all] = Members::of_this_process();
  std::lock_guard lock(mutex);
  std::uint64_t sum = 0;  // a sum, because ranks may have made the groups in different orders
  for (const auto& other : all)
    if (other != own_ && other->calls > 0 && !other->left_out && other->contains(*own_))
      sum += mixed(hash_of(other->name), other->calls);
  ++own_->calls;
  return static_cast<std::uint32_t>(mixed(sum, 1) >> 32) | 1;
}

void GroupOrder::leave_out() noexcept {
  auto& [mutex, all] = Members::of_this_process();
  std::lock_guard lock(mutex);
  own_->left_out = true;
}

}  // namespace vccl
