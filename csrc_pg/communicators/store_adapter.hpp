// Adapts torch's rendezvous store to the transport's interface.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "transport/store.hpp"

namespace vccl {

/// Uses the keys of a c10d::Store that begin with a prefix.
class StoreAdapter final : public Store {
 public:
  /// `who` begins the text of errors: "rank 1, joining group default_pg". When `cancelled` becomes true,
  /// waits end early with Error(aborted). `prefix` ends with a slash. Every member throws Error(bootstrap) if
  /// the store does not answer.
  StoreAdapter(const c10::intrusive_ptr<c10d::Store>& store, const std::string& prefix, std::string who,
               std::shared_ptr<const std::atomic<bool>> cancelled);

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, const Deadline& deadline) override;
  /// A store of torch that has no compare_set gets a substitute, in which a key that is set twice at the same
  /// moment may get either value.
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& value) override;
  void remove(const std::string& key) override;

 private:
  [[noreturn]] void throw_failed(const char* verb, const std::exception& error) const;
  std::string compare_set_by_turns(const std::string& key, const std::string& expected,
                                   const std::string& value);

  const std::string who_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<const std::atomic<bool>> cancelled_;
};

/// Returns the store below all prefixes, in which every group of the job can read the same keys.
c10::intrusive_ptr<c10d::Store> store_of_job(const c10::intrusive_ptr<c10d::Store>& store);

}  // namespace vccl
