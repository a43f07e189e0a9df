// Adapts torch's rendezvous store to the transport's interface.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "transport/store.hpp"

namespace vccl {

/// Uses the part of a c10d::Store that belongs to one communicator.
///
/// A store outlives groups (under torchrun it lives as long as the job), so a group that is made again must
/// not read the keys of its predecessor. Every rank counts, in the store, the communicators of this kind that
/// it has begun to make. The n-th of one rank belongs with the n-th of every other rank, and n is part of the
/// keys.
class StoreAdapter final : public Store {
 public:
  /// Joins the store. `kind` ("vdev", "cpu") separates communicators whose order of creation may differ
  /// between ranks. `rank` and `group` also appear in errors. When `cancelled` becomes true, waits end early
  /// with Error(aborted). Throws Error(bootstrap) when the store does not answer.
  StoreAdapter(const c10::intrusive_ptr<c10d::Store>& store, const std::string& kind, int rank,
               const std::string& group, std::shared_ptr<const std::atomic<bool>> cancelled);

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, const Deadline& deadline) override;
  void remove(const std::string& key) override;

 private:
  [[noreturn]] void throw_failed(const char* verb, const std::exception& error) const;

  const std::string who_;  // "rank 1, joining group default_pg"
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<const std::atomic<bool>> cancelled_;
};

}  // namespace vccl
