#include "csrc_pg/tasks/coalescing.hpp"

#include <utility>

#include <c10/util/Exception.h>

namespace vccl {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

void BatchEntry::launched(const WorkPtr& batch) {
  std::lock_guard lock(mutex_);
  batch_ = batch;
}

WorkPtr BatchEntry::known() const {
  std::lock_guard lock(mutex_);
  return batch_;
}

c10d::Work& BatchEntry::batch(WorkPtr& holder) const {
  holder = known();
  TORCH_CHECK(
      holder, name_,
      " was called while the group collects calls (a coalescing manager, or batch_isend_irecv): it is "
      "launched when all have been called, and cannot be waited for before. Inside, use isend and "
      "irecv instead of send and recv, and wait for what the manager returns.");
  return *holder;
}

bool BatchEntry::isCompleted() {
  const auto batch = known();
  return batch && batch->isCompleted();
}

bool BatchEntry::isSuccess() const {
  const auto batch = known();
  return batch && batch->isSuccess();
}

std::exception_ptr BatchEntry::exception() const {
  const auto batch = known();
  return batch ? batch->exception() : nullptr;
}

int BatchEntry::sourceRank() const {
  WorkPtr holder;
  return batch(holder).sourceRank();
}

std::vector<at::Tensor> BatchEntry::result() {
  WorkPtr holder;
  return batch(holder).result();
}

void BatchEntry::synchronize() {
  WorkPtr holder;
  batch(holder).synchronize();
}

bool BatchEntry::wait(std::chrono::milliseconds timeout) {
  WorkPtr holder;
  return batch(holder).wait(timeout);
}

void BatchEntry::blockCurrentStream() {
  WorkPtr holder;
  batch(holder).blockCurrentStream();
}

void BatchEntry::abort() {
  WorkPtr holder;
  batch(holder).abort();
}

FuturePtr BatchEntry::getFuture() {
  WorkPtr holder;
  return batch(holder).getFuture();
}

FuturePtr BatchEntry::getFutureResult() {
  WorkPtr holder;
  return batch(holder).getFutureResult();
}

float BatchEntry::getDuration() const {
  WorkPtr holder;
  return batch(holder).getDuration();
}

std::uint64_t BatchEntry::getSequencenumber() const {
  WorkPtr holder;
  return batch(holder).getSequencenumber();
}

void Coalescing::start() {
  Batch dropped;  // destroyed without the lock
  std::lock_guard lock(mutex_);
  const auto [found, is_new] = batches_.try_emplace(std::this_thread::get_id());
  std::swap(found->second, dropped);
  if (is_new) count_.fetch_add(1, std::memory_order_relaxed);
}

bool Coalescing::active() const {
  if (count_.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard lock(mutex_);
  return batches_.contains(std::this_thread::get_id());
}

Batch& Coalescing::mine(const Request& request) {
  std::lock_guard lock(mutex_);
  // Only its own thread uses a batch, and the map does not move its entries.
  auto& batch = batches_.at(std::this_thread::get_id());
  if (!batch.requests.empty()) {
    const auto& first = batch.requests.front();
    TORCH_CHECK_VALUE(request.device == first.device, request.name, " on ", request.device,
                      " cannot be coalesced with ", first.name, " on ", first.device);
  }
  return batch;
}

WorkPtr Coalescing::entered(Batch& batch, Request request) {
  const bool async = request.async;
  const char* const name = request.name;
  batch.requests.push_back(std::move(request));
  if (!async) return nullptr;
  auto entry = c10::make_intrusive<BatchEntry>(name);
  batch.entries.emplace_back(entry);
  return entry;
}

WorkPtr Coalescing::add(Request request, CollectivePlan plan) {
  auto& batch = mine(request);
  batch.plans.push_back(std::move(plan));
  return entered(batch, std::move(request));
}

WorkPtr Coalescing::add(Request request, MessageCall message) {
  auto& batch = mine(request);
  batch.messages.push_back(std::move(message));
  return entered(batch, std::move(request));
}

std::optional<Batch> Coalescing::take() {
  std::lock_guard lock(mutex_);
  const auto found = batches_.find(std::this_thread::get_id());
  if (found == batches_.end()) return std::nullopt;
  auto batch = std::move(found->second);
  batches_.erase(found);
  count_.fetch_sub(1, std::memory_order_relaxed);
  return batch;
}

}  // namespace vccl
