#include "csrc_device/runtime/queues/failure_list.hpp"

#include <algorithm>
#include <utility>

namespace vdev {
namespace {

template <class Matches>
FailurePtr first_of(const std::vector<FailurePtr>& failures, const Matches& matches) {
  const auto found = std::ranges::find_if(failures, matches);
  return found == failures.end() ? nullptr : *found;
}

}  // namespace

void FailureList::push_all(const FailureList& others) {
  failures_.insert(failures_.end(), others.begin(), others.end());
}

void FailureList::merge(FailureList reported, Trash& trash) {
  const std::uint64_t now = error_epoch();
  for (auto& failure : failures_) {
    if (!failure->stands(now)) trash.push_back(std::exchange(failure, nullptr));
  }
  std::erase(failures_, nullptr);
  for (auto& failure : reported.failures_) {
    const bool known =
        std::ranges::any_of(failures_, [&](const auto& other) { return failure->adds_nothing_to(*other); });
    if (known)
      trash.push_back(std::move(failure));
    else
      failures_.push_back(std::move(failure));
  }
}

FailurePtr FailureList::first_standing(std::uint64_t epoch) const {
  return first_of(failures_, [=](const auto& failure) { return failure->stands(epoch); });
}

FailurePtr FailureList::first_blocking() const {
  // What was dealt with blocks nothing: a task could spoil nothing in its name any more.
  const std::uint64_t now = error_epoch();
  return first_of(failures_, [=](const auto& failure) { return failure->blocks() && failure->stands(now); });
}

FailurePtr FailureList::to_raise(std::uint64_t epoch) const {
  FailurePtr first;
  for (const auto& failure : failures_) {
    if (!failure->stands(epoch)) continue;
    if (!failure->raised()) return failure;
    if (!first) first = failure;
  }
  return first;
}

void FailureList::raise_one_for_all(std::uint64_t epoch) const {
  const auto first = to_raise(epoch);
  if (!first) return;
  for (const auto& failure : failures_) failure->claim();
  first->raised_for_stream();
  first->raise();
}

void FailureList::raise_before_reading(std::uint64_t epoch) const {
  for (const auto& failure : failures_) {
    const bool concerns_caller =
        (failure->blocks() && failure->stands(epoch)) || failure->settled_since(epoch) ||
        (!failure->waits_to_be_dealt_with() && failure->stands(epoch) && failure->claim());
    if (concerns_caller) failure->raise();
  }
}

}  // namespace vdev
