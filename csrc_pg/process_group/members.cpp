// Groups made from groups, and what a group offers beside collectives.
#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/text.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/allocator.hpp"
#include "csrc_device/torch/gil.hpp"
#include "csrc_device/torch/streams.hpp"
#include "csrc_pg/operations/errors.hpp"
#include "csrc_pg/process_group/process_group.hpp"

namespace vccl {

using vdev::WithoutGil;

namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using BackendOptionsPtr = c10::intrusive_ptr<c10d::Backend::Options>;

// These are shrink_group's flags, with the values that torch.distributed gives them.
constexpr int kShrinkDefault = 0, kShrinkAbort = 1;

template <typename Number>
std::string joined(const std::vector<Number>& numbers) {
  std::string text;
  for (const auto number : numbers) text += base::text(text.empty() ? "" : ",", number);
  return text;
}

template <typename Number>
void check_members(const std::vector<Number>& ranks, int size, const char* operation) {
  auto sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  TORCH_CHECK_VALUE(!sorted.empty(), operation, ": no ranks given");
  TORCH_CHECK_VALUE(sorted.front() >= 0 && sorted.back() < size, operation, ": the ranks [", joined(ranks),
                    "] are not all in a group of ", size, " ranks");
  TORCH_CHECK_VALUE(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(), operation,
                    ": the ranks [", joined(ranks), "] name one of them twice");
}

}  // namespace

// Returns a copy, because torch writes the child's name and timeout into the result (splitGroup,
// mergeRemoteGroup).
BackendOptionsPtr ProcessGroupVccl::getBackendOptions() {
  return options_->copy();
}

// `given` may be another backend's, if a group has several. The fields that all backends have are then
// copied.
c10::intrusive_ptr<Options> ProcessGroupVccl::options_of_child(const BackendOptionsPtr& given) const {
  if (const auto ours = c10::dynamic_intrusive_pointer_cast<Options>(given)) {
    auto options = ours->copy();
    options->stands_for = options_->stands_for;
    return options;
  }
  auto options = options_->copy();
  if (given) {
    options->timeout = given->timeout;
    options->group_name = given->group_name;
    options->group_desc = given->group_desc;
  }
  return options;
}

std::vector<std::uint64_t> ProcessGroupVccl::global_ranks(const std::vector<int>& ranks) const {
  std::vector<std::uint64_t> result;
  const auto& ours = options_->global_ranks_in_group;
  for (const int rank : ranks)
    result.push_back(ours.empty() ? static_cast<std::uint64_t>(rank) : ours[static_cast<std::size_t>(rank)]);
  return result;
}

std::vector<c10::intrusive_ptr<ProcessGroupVccl>> ProcessGroupVccl::itself() {
  return {c10::intrusive_ptr<ProcessGroupVccl>::unsafe_reclaim_from_nonowning(this)};
}

// The n-th child with the same members and name pairs with the n-th such child on every other member,
// whatever other children the ranks have made. Not every rank has to take part in every child. Ranks with
// other members read other keys.
StorePtr ProcessGroupVccl::store_of_child(const StorePtr& store, const std::string& purpose) {
  std::lock_guard lock(children_mutex_);
  const auto number = ++children_[purpose];
  return c10::make_intrusive<c10d::PrefixStore>(base::text(purpose, "/", number), store);
}

void ProcessGroupVccl::agree_on_call(const std::string& kind, const std::string& call,
                                     const std::vector<std::vector<std::uint64_t>>& lists) {
  WithoutGil without_gil;
  with_torch_errors([&] { communicators_.agree_on_call(kind, {call, lists}); });
}

// ProcessGroup::splitGroup calls split() once for each device type, with the same name, and keeps the first
// child.
void ProcessGroupVccl::count_split(const std::string& name) {
  std::lock_guard lock(children_mutex_);
  if (splits_ == 0 || name != last_split_) ++splits_;
  last_split_ = name;
}

int ProcessGroupVccl::split_count() const {
  std::lock_guard lock(children_mutex_);
  return splits_;
}

BackendPtr ProcessGroupVccl::split(const StorePtr& store, const std::vector<int>& ranks,
                                   const BackendOptionsPtr& given) {
  check_members(ranks, size_, "split_group");
  auto options = options_of_child(given);
  count_split(options->group_name);
  const auto place = std::find(ranks.begin(), ranks.end(), rank_);
  if (place == ranks.end()) return nullptr;
  options->global_ranks_in_group = global_ranks(ranks);
  options->call = "split_group";
  options->origin = id();
  const auto purpose = base::text("split/", options->group_name, "/", joined(ranks));
  auto child = c10::make_intrusive<ProcessGroupVccl>(store_of_child(store, purpose),
                                                     static_cast<int>(place - ranks.begin()),
                                                     static_cast<int>(ranks.size()), options, itself());
  child->setGroupUid(options->group_name);
  child->setGroupDesc(options->group_desc);
  return child;
}

BackendPtr ProcessGroupVccl::merge(const StorePtr& store, const BackendOptionsPtr& given, const int& rank,
                                   const int& size) {
  TORCH_CHECK_VALUE(size > 0 && rank >= 0 && rank < size, "merge_remote_group: this rank is number ", rank,
                    " (from 0) on the store, and the size is ", size,
                    ". Give each merge a store of its own, and let exactly `size` ranks call it");
  auto options = options_of_child(given);
  // The global ranks of the other groups' ranks are not known, so the merged group counts its ranks from 0.
  options->global_ranks_in_group.resize(static_cast<std::size_t>(size));
  std::iota(options->global_ranks_in_group.begin(), options->global_ranks_in_group.end(), 0);
  options->call = "merge_remote_group";
  options->origin.clear();
  auto merged = c10::make_intrusive<ProcessGroupVccl>(store, rank, size, options);
  merged->setGroupUid(options->group_name);
  return merged;
}

BackendPtr ProcessGroupVccl::shrink(const std::vector<std::int64_t>& excluded, int flags,
                                    const BackendOptionsPtr& given) {
  check_members(excluded, size_, "shrink_group");
  TORCH_CHECK_VALUE(flags == kShrinkDefault || flags == kShrinkAbort, "shrink_group: the flags ", flags,
                    " are neither SHRINK_DEFAULT (0) nor SHRINK_ABORT (1)");
  TORCH_CHECK_VALUE(static_cast<int>(excluded.size()) < size_, "shrink_group: no rank would remain");
  const auto is_excluded = [&](int rank) {
    return std::find(excluded.begin(), excluded.end(), rank) != excluded.end();
  };
  TORCH_CHECK_VALUE(!is_excluded(rank_), "shrink_group: rank ", rank_, " is one of the excluded ranks [",
                    joined(excluded), "], which must not call");
  std::vector<int> remaining;
  for (int rank = 0; rank < size_; ++rank)
    if (!is_excluded(rank)) remaining.push_back(rank);

  auto options = options_of_child(given);
  options->global_ranks_in_group = global_ranks(remaining);
  options->call = "shrink_group";
  options->origin = id();
  options->group_name = base::text(options_->group_name, ":shrunk");
  // This is the description that torch.distributed gives the group afterwards.
  options->group_desc = name_ == "default_pg" ? "default:shrunken" : options->group_name;
  const auto place = std::find(remaining.begin(), remaining.end(), rank_) - remaining.begin();
  if (flags == kShrinkAbort) abort();
  auto sorted = excluded;
  std::sort(sorted.begin(), sorted.end());
  agree_on_call("shrink", base::text("shrink_group([", joined(sorted), "])"),
                {options->global_ranks_in_group});
  auto shrunk = c10::make_intrusive<ProcessGroupVccl>(
      store_of_child(store_, base::text("shrink/", joined(remaining))), static_cast<int>(place),
      static_cast<int>(remaining.size()), options, itself());
  shrunk->setGroupUid(options->group_name);
  // Connects at once, while the caller still has the old group to shrink again, should another rank be gone
  // too.
  if (bound_device_id_) {
    shrunk->setBoundDeviceId(bound_device_id_);
    shrunk->eagerConnectSingleDevice(*bound_device_id_);
  }
  return shrunk;
}

void ProcessGroupVccl::eagerConnectSingleDevice(at::Device device) {
  WithoutGil without_gil;
  with_torch_errors([&] { communicators_.get(device, timeout_.load()); });
  connected_at_once_.store(true);
}

void ProcessGroupVccl::registerOnCompletionHook(CompletionHook::Hook&& hook) {
  TORCH_CHECK_WITH(DistBackendError, !hasHooks(), "the group ", group_name(),
                   " has an on-completion hook already, and takes one");
  hook_ = std::make_unique<CompletionHook>(std::move(hook));
  // hasHooks() checks whether this is set. Nobody calls it.
  onCompletionHook_ = [](const std::shared_ptr<c10d::WorkInfo>&) {};
  // The release store publishes the hook to watch_completion(), which may run on another thread.
  watching_.store(hook_.get(), std::memory_order_release);
}

void ProcessGroupVccl::watch_completion(const std::shared_ptr<Outcome>& outcome, c10d::OpType type,
                                        std::uint64_t sequence) {
  if (auto* hook = watching_.load(std::memory_order_acquire)) hook->watch(outcome, type, sequence);
}

void ProcessGroupVccl::waitForPendingWorks() {
  auto* hook = watching_.load(std::memory_order_acquire);
  if (hook == nullptr || hook->inherited()) return;
  WithoutGil without_gil;
  // The collectives' own timeouts bound the wait. The waiting thread runs collectives that no other thread
  // runs.
  for (const auto& entry : communicators_.all()) entry->last().wait();
  const auto timeout = timeout_.load();
  TORCH_CHECK_WITH(DistBackendError, hook->wait(timeout), "the on-completion hook of the group ",
                   group_name(), " did not return within the group's timeout of ", timeout.count(), " ms");
}

void ProcessGroupVccl::registerAbortHook(std::int64_t id, AbortHooks::Hook hook) {
  abort_hooks_->set(id, std::move(hook));
}

void ProcessGroupVccl::unregisterAbortHook(std::int64_t id) {
  abort_hooks_->forget(id);
}

void ProcessGroupVccl::registerCompletionHook(std::int64_t id, SuccessHooks::Hook hook) {
  success_hooks_->set(id, std::move(hook));
}

void ProcessGroupVccl::unregisterCompletionHook(std::int64_t id) {
  success_hooks_->forget(id);
}

std::shared_ptr<Communicator> ProcessGroupVccl::host_communicator() {
  return with_torch_errors([&] { return communicators_.get(c10::kCPU, timeout_.load())->communicator(); });
}

bool ProcessGroupVccl::supportsTensorAlloc(c10::DeviceIndex index) {
  return index >= 0 && index < vdev::card_count();
}

// Peers map all memory of every card, so any tensor of a card is equally good for communication.
at::Tensor ProcessGroupVccl::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK_VALUE(size >= 0, "allocate_tensor: the size is ", size, ", and must not be negative");
  if (!options.has_device()) options = options.device(vdev::device_of(vdev::current_card()));
  TORCH_CHECK_VALUE(vdev::is_card(options.device()), "backend vccl allocates tensors on cards, and not on ",
                    options.device());
  return at::empty({size}, options);
}

std::shared_ptr<c10::Allocator> ProcessGroupVccl::getMemAllocator() {
  // The allocator lives as long as the process, and nobody owns it.
  return {std::shared_ptr<void>(), static_cast<c10::Allocator*>(vdev::device_allocator())};
}

}  // namespace vccl
