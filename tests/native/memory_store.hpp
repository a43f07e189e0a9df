// A store for ranks that are threads of one process.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "transport/error.hpp"
#include "transport/store.hpp"

namespace vccl {

class MemoryStore : public Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }

  std::string get(const std::string& key, const Deadline& deadline) override {
    std::unique_lock lock(mutex_);
    while (!values_.contains(key)) {
      if (deadline.passed()) throw Error(ErrorCode::timeout, "nobody set the key " + key);
      // In slices of the system's clock: thread sanitizers of this age do not know the monotonic wait.
      changed_.wait_until(lock, std::chrono::system_clock::now() + Milliseconds(5));
    }
    return values_[key];
  }

  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& value) override {
    std::lock_guard lock(mutex_);
    const auto place = values_.find(key);
    const std::string found = place == values_.end() ? "" : place->second;
    if (found != expected) return found;
    values_[key] = value;
    changed_.notify_all();
    return value;
  }

  void remove(const std::string& key) override {
    std::lock_guard lock(mutex_);
    values_.erase(key);
  }

  std::size_t keys() {
    std::lock_guard lock(mutex_);
    return values_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace vccl
