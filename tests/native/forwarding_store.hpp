// A store that passes everything on to another one. Tests derive from it to see or change single uses.
#pragma once

#include <string>

#include "transport/store.hpp"

namespace vccl {

class ForwardingStore : public Store {
 public:
  explicit ForwardingStore(Store& inner) : inner_(inner) {}
  void set(const std::string& key, const std::string& value) override { inner_.set(key, value); }
  std::string get(const std::string& key, const Deadline& deadline) override {
    return inner_.get(key, deadline);
  }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& value) override {
    return inner_.compare_set(key, expected, value);
  }
  void remove(const std::string& key) override { inner_.remove(key); }

 private:
  Store& inner_;
};

}  // namespace vccl
