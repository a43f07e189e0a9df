#include "csrc_pg/store_adapter.hpp"

#include <algorithm>
#include <thread>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "transport/error.hpp"

namespace vccl {
namespace {

// A store's own wait cannot be interrupted, and TCPStore prints two warnings for each that ends in vain. So
// we look again and again, less and less often.
constexpr std::chrono::microseconds kFirstPause{200}, kLongestPause{10'000};

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
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    if (cancelled_->load(std::memory_order_relaxed))
      throw Error(ErrorCode::aborted,
                  "aborted while waiting for the key '" + key + "' of the rendezvous store");
    try {
      if (store_->check({key})) {
        const auto value = store_->get(key);
        return {value.begin(), value.end()};
      }
    } catch (const std::exception& error) {
      throw_store_failed("get", key, error);
    }
    if (deadline.passed())
      throw Error(ErrorCode::timeout, "timed out after " + std::to_string(deadline.length.count()) +
                                          " ms waiting for the key '" + key +
                                          "' of the rendezvous store, which another rank sets");
    std::this_thread::sleep_for(pause);
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
