// Stores for ranks that die, or fail, at a certain point of the meeting.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "tests/native/forwarding_store.hpp"
#include "transport/error.hpp"

namespace vccl {

/// Does what a derived class says at a given use of the store: "set reach/", "get table".
class StoreWithPlan : public ForwardingStore {
 public:
  StoreWithPlan(Store& inner, std::string where) : ForwardingStore(inner), where_(std::move(where)) {}
  void set(const std::string& key, const std::string& value) override {
    look("set " + key);
    ForwardingStore::set(key, value);
  }
  std::string get(const std::string& key, const Deadline& deadline) override {
    look("get " + key);
    return ForwardingStore::get(key, deadline);
  }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& value) override {
    look("compare_set " + key);
    return ForwardingStore::compare_set(key, expected, value);
  }

 protected:
  virtual void act() = 0;
  void forget_plan() { where_.clear(); }

 private:
  void look(const std::string& use) {
    if (!where_.empty() && use.starts_with(where_)) act();
  }
  std::string where_;
};

/// Kills its process there.
class DeadlyStore final : public StoreWithPlan {
 public:
  using StoreWithPlan::StoreWithPlan;

 private:
  void act() override { kill(getpid(), SIGKILL); }
};

/// Throws there, once.
class RefusingStore final : public StoreWithPlan {
 public:
  using StoreWithPlan::StoreWithPlan;

 private:
  void act() override {
    forget_plan();
    throw Error(ErrorCode::system, "no descriptors are left");
  }
};

}  // namespace vccl
