#include "csrc_device/runtime/failure.hpp"

#include <algorithm>
#include <utility>

#include "csrc_device/runtime/spoiled_memory.hpp"

namespace vdev {
namespace {

std::atomic<std::uint64_t> current_epoch{1};

}  // namespace

std::uint64_t error_epoch() noexcept {
  return current_epoch.load(std::memory_order_acquire);
}

std::uint64_t next_error_epoch() noexcept {
  return current_epoch.fetch_add(1, std::memory_order_acq_rel) + 1;
}

bool Failure::stands(std::uint64_t epoch) const {
  const std::uint64_t settled = settled_.load(std::memory_order_acquire);
  if (settled != 0) return epoch < settled;
  return stands_ == Stands::kUntilDealtWith || !raised_.load() || spoils_.load() != 0;
}

bool Failure::settled_since(std::uint64_t epoch) const {
  return epoch < settled_.load(std::memory_order_acquire);
}

void Failure::raised_for_stream() {
  raised_.store(true);
  if (unowned_) settle(next_error_epoch());
}

void Failure::raise() {
  raised_.store(true);
  std::rethrow_exception(error_);
}

void Failure::settle(std::uint64_t epoch) {
  std::uint64_t standing = 0;
  settled_.compare_exchange_strong(standing, epoch, std::memory_order_acq_rel);
}

FailurePtr FailureOwner::make(std::exception_ptr error, bool blocks) {
  std::lock_guard lock(mutex_);
  auto failure = std::make_shared<Failure>(std::move(error), shared_from_this(),
                                           blocks ? Stands::kUntilDealtWith : stands_, blocks, closed_);
  if (!closed_) {
    std::erase_if(standing_, [](const auto& entry) { return entry.expired(); });
    standing_.push_back(failure);
  }
  return failure;
}

FailurePtr FailureOwner::fail(std::exception_ptr error) {
  return make(std::move(error), false);
}

FailurePtr FailureOwner::fail_unknown(std::exception_ptr error) {
  return make(std::move(error), true);
}

void FailureOwner::settle() noexcept {
  settle_all(false);
}

void FailureOwner::close() noexcept {
  settle_all(true);
}

void FailureOwner::settle_all(bool for_good) noexcept {
  if (made_.inherited()) return;
  std::vector<FailurePtr> settled;
  {
    std::lock_guard lock(mutex_);
    closed_ |= for_good;
    for (const auto& entry : std::exchange(standing_, {})) {
      if (auto failure = entry.lock()) settled.push_back(std::move(failure));
    }
    if (settled.empty()) return;
    // The epoch moves before the failures are settled, so that a call that begins afterwards has at least the
    // new epoch.
    const std::uint64_t epoch = next_error_epoch();
    for (const auto& failure : settled) failure->settle(epoch);
  }
  spoiled_memory().forget_dealt_with();
}

std::vector<FailurePtr> FailureOwner::standing() {
  std::vector<FailurePtr> found;
  const std::uint64_t now = error_epoch();
  std::lock_guard lock(mutex_);
  for (const auto& entry : standing_) {
    if (auto failure = entry.lock(); failure && failure->stands(now)) found.push_back(std::move(failure));
  }
  return found;
}

FailureOwner& program_errors() {
  struct Program {
    std::shared_ptr<FailureOwner> owner = std::make_shared<FailureOwner>(Stands::kWhileItSpoils);
  };
  static base::OnePerProcess<Program> one;
  return *one.get().owner;
}

}  // namespace vdev
