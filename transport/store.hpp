// The rendezvous store: an abstract key-value store with the operations that c10d::Store offers.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "transport/deadline.hpp"

namespace vccl {

/// A store that all ranks of a group share. The keys belong to the group, because the caller prefixes them.
/// Values are bytes. Implementations are thread-safe.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Blocks until the key has a value, and returns the value. Throws Error(timeout), which names the key.
  virtual std::string get(const std::string& key, const Deadline& deadline) = 0;
  /// Sets the key to `value` if its value is `expected`. An empty text stands for a key without a value.
  /// Returns the value that the key has afterwards, which is `value` if the key was set. Ranks that call this
  /// at the same time do so one after the other.
  virtual std::string compare_set(const std::string& key, const std::string& expected,
                                  const std::string& value) = 0;
  /// Removes the key. Stores that cannot delete do nothing.
  virtual void remove(const std::string& key) = 0;
};

/// Connects to a store once more, so that what blocks one connection does not block the other. Throws Error.
using ConnectStore = std::function<std::unique_ptr<Store>()>;

}  // namespace vccl
