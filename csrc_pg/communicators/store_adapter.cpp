#include "csrc_pg/communicators/store_adapter.hpp"

#include <algorithm>
#include <thread>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/periods.hpp"
#include "base/text.hpp"
#include "base/thread_waits.hpp"
#include "transport/error.hpp"
#include "transport/interruption_check.hpp"

namespace vccl {
namespace {

// A store's own wait cannot be interrupted, and TCPStore prints two warnings for each wait that ends in vain.
// So the adapter polls the store, with growing pauses.
constexpr std::chrono::microseconds kFirstPause{200}, kLongestPause{10'000};

std::string text_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error ? torch_error->what_without_backtrace() : error.what();
}

}  // namespace

StoreAdapter::StoreAdapter(const c10::intrusive_ptr<c10d::Store>& store, const std::string& prefix,
                           std::string who, std::shared_ptr<const std::atomic<bool>> cancelled)
    : who_(std::move(who)),
      // A PrefixStore puts a slash between the two. So "cpu/1/" and "failure" are the same key below "vccl/"
      // as "failure" is below "vccl/cpu/1/".
      store_(c10::make_intrusive<c10d::PrefixStore>(prefix.substr(0, prefix.size() - 1), store)),
      cancelled_(std::move(cancelled)) {}

void StoreAdapter::throw_failed(const char* verb, const std::exception& error) const {
  throw Error(ErrorCode::bootstrap,
              base::text(who_, ", could not ", verb, " the rendezvous store: ", text_of(error),
                         ". Is the process that serves the store (usually rank 0 or torchrun) still alive?"));
}

void StoreAdapter::set(const std::string& key, const std::string& value) {
  try {
    store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
  } catch (const std::exception& error) {
    throw_failed("write to", error);
  }
}

std::string StoreAdapter::get(const std::string& key, const Deadline& deadline) {
  const base::ThreadWaits waits;
  auto next_look = Clock::now() + base::kInterruptionPeriod;
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    if (cancelled_->load(std::memory_order_relaxed))
      throw Error(ErrorCode::aborted,
                  base::text(who_, ", was aborted or closed while it waited for the others"));
    try {
      if (store_->check({key})) {
        const auto value = store_->get(key);
        return {value.begin(), value.end()};
      }
    } catch (const std::exception& error) {
      throw_failed("read from", error);
    }
    if (deadline.passed())
      throw Error(ErrorCode::timeout, base::text(who_, ", waited ", deadline.length.count(), " ms"));
    if (Clock::now() >= next_look) {
      next_look = Clock::now() + base::kInterruptionPeriod;
      throw_if_interrupted("it waited for the other ranks");
    }
    std::this_thread::sleep_for(pause);
  }
}

std::string StoreAdapter::compare_set(const std::string& key, const std::string& expected,
                                      const std::string& value) {
  try {
    const auto found = store_->compareSet(key, std::vector<std::uint8_t>(expected.begin(), expected.end()),
                                          std::vector<std::uint8_t>(value.begin(), value.end()));
    return {found.begin(), found.end()};
  } catch (const std::exception& error) {
    // A store in C++ throws NotImplementedError, and one in Python an Error, both with this text.
    if (text_of(error).find("ot implemented") == std::string::npos) throw_failed("write to", error);
  }
  return compare_set_by_turns(key, expected, value);
}

std::string StoreAdapter::compare_set_by_turns(const std::string& key, const std::string& expected,
                                               const std::string& value) {
  try {
    const bool first = expected.empty() && store_->add(key + "/turn", 1) == 1;
    if (!first) {
      const auto found = store_->get(key);
      const std::string text(found.begin(), found.end());
      if (text != expected) return text;
    }
    store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
    return value;
  } catch (const std::exception& error) {
    throw_failed("write to", error);
  }
}

void StoreAdapter::remove(const std::string& key) {
  try {
    store_->deleteKey(key);
  } catch (const std::exception&) {
    // FileStore and others cannot delete keys, and a store that is gone has nothing to delete.
  }
}

c10::intrusive_ptr<c10d::Store> store_of_job(const c10::intrusive_ptr<c10d::Store>& store) {
  const auto prefixed = c10::dynamic_intrusive_pointer_cast<c10d::PrefixStore>(store);
  return prefixed ? prefixed->getUnderlyingNonPrefixStore() : store;
}

}  // namespace vccl
