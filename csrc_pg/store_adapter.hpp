// torch's rendezvous store as the transport's.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "transport/store.hpp"

namespace vccl {

/// A part of a c10d::Store that belongs to one communicator.
///
/// A store outlives groups (under torchrun it lives as long as the job), so the same group made again must
/// not read the keys of its predecessor. Every rank counts, in the store, the communicators of this kind that
/// it has begun to make: the n-th of one rank belongs with the n-th of every other, and n is part of the
/// keys.
class StoreAdapter final : public Store {
 public:
  /// `kind` separates communicators whose order of creation may differ between ranks ("vdev", "cpu").
  /// `cancelled` ends waits early, with Error(aborted). Throws Error(bootstrap) when the store does not
  /// answer.
  StoreAdapter(const c10::intrusive_ptr<c10d::Store>& store, const std::string& kind, int rank,
               std::shared_ptr<const std::atomic<bool>> cancelled);

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, const Deadline& deadline) override;
  void remove(const std::string& key) override;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<const std::atomic<bool>> cancelled_;
};

}  // namespace vccl
