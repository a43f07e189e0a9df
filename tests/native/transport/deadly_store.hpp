// A store for ranks that die at a certain point of the meeting.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "transport/store.hpp"

namespace vccl {

/// Kills its process at the given use of the store: "set reach/", "get table".
class DeadlyStore final : public Store {
 public:
  DeadlyStore(Store& inner, std::string where) : inner_(inner), where_(std::move(where)) {}
  void set(const std::string& key, const std::string& value) override {
    look("set " + key);
    inner_.set(key, value);
  }
  std::string get(const std::string& key, const Deadline& deadline) override {
    look("get " + key);
    return inner_.get(key, deadline);
  }
  void remove(const std::string& key) override { inner_.remove(key); }

 private:
  void look(const std::string& use) {
    if (!where_.empty() && use.starts_with(where_)) kill(getpid(), SIGKILL);
  }
  Store& inner_;
  std::string where_;
};

}  // namespace vccl
