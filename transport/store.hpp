// The rendezvous: an abstract key-value store, as c10d::Store offers it.
#pragma once

#include <string>

#include "transport/deadline.hpp"

namespace vccl {

/// Shared by all ranks of a group; keys are private to the group (the caller prefixes them). Values are
/// bytes. Implementations are thread-safe.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits for the key. Throws Error(timeout) naming the key.
  virtual std::string get(const std::string& key, const Deadline& deadline) = 0;
  /// Best effort: stores that cannot delete do nothing.
  virtual void remove(const std::string& key) = 0;
};

}  // namespace vccl
