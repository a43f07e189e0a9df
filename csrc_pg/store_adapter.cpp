#include "csrc_pg/store_adapter.hpp"

#include <algorithm>
#include <thread>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "transport/error.hpp"

namespace vccl {
namespace {

// A store's wait cannot be interrupted, so we wait in slices and look for abort() in between.
constexpr Milliseconds kSlice{200};

std::string text_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error ? torch_error->what_without_backtrace() : error.what();
}

[[noreturn]] void throw_store_failed(const char* verb, const std::string& key, const std::exception& error) {
  throw Error(ErrorCode::bootstrap,
              std::string("the rendezvous store failed to ") + verb + " the key '" + key +
                  "': " + text_of(error) +
                  ". Is the process that serves the store (usually rank 0 or torchrun) alive?");
}

}  // namespace

StoreAdapter::StoreAdapter(const c10::intrusive_ptr<c10d::Store>& store, const std::string& kind, int rank,
                           std::shared_ptr<const std::atomic<bool>> cancelled)
    : cancelled_(std::move(cancelled)) {
  const std::string counter = "vccl/" + kind + "/made_by_rank_" + std::to_string(rank);
  try {
    const auto number = store->add(counter, 1);
    store_ = c10::make_intrusive<c10d::PrefixStore>("vccl/" + kind + "/" + std::to_string(number), store);
  } catch (const std::exception& error) {
    throw_store_failed("count in", counter, error);
  }
}

void StoreAdapter::set(const std::string& key, const std::string& value) {
  try {
    store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
  } catch (const std::exception& error) {
    throw_store_failed("set", key, error);
  }
}

std::string StoreAdapter::get(const std::string& key, const Deadline& deadline) {
  for (;;) {
    if (cancelled_->load(std::memory_order_relaxed))
      throw Error(ErrorCode::aborted,
                  "aborted while waiting for the key '" + key + "' of the rendezvous store");
    const auto left = std::chrono::ceil<Milliseconds>(deadline.at - Clock::now());
    try {
      // A store takes a timeout of zero for "its own default", so the last look is one of a millisecond.
      store_->wait({key}, std::clamp(left, Milliseconds(1), kSlice));
      const auto value = store_->get(key);
      return {value.begin(), value.end()};
    } catch (const c10::DistNetworkError& error) {
      throw_store_failed("get", key, error);
    } catch (const std::exception& error) {
      // Every store raises another type when a wait times out; an answer that is no timeout repeats itself
      // until the deadline and is then told.
      if (deadline.passed())
        throw Error(ErrorCode::timeout,
                    "timed out after " + std::to_string(deadline.length.count()) +
                        " ms waiting for the key '" + key +
                        "' of the rendezvous store, which another rank sets: " + text_of(error));
    }
  }
}

void StoreAdapter::remove(const std::string& key) {
  try {
    store_->deleteKey(key);
  } catch (const std::exception&) {
    // FileStore and others cannot delete, and a store that is gone has nothing to delete.
  }
}

}  // namespace vccl
