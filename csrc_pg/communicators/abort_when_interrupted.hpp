// Aborts a group when a thread that waits for its operation is interrupted.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "csrc_device/runtime/interruption.hpp"
#include "transport/communicator.hpp"

namespace vccl {

class Communicators;

/// Makes an interruption that ends waits for streams end the transport's waits, too. Further calls do
/// nothing.
void let_interruptions_reach_transport();

/// Points to the communicators of a group, for objects that may outlive them. Thread-safe.
class GroupToAbort {
 public:
  explicit GroupToAbort(Communicators& group) : group_(&group) {}
  void abort(const std::string& reason) noexcept;
  /// Whether the program destroys the group, or has destroyed it.
  bool closing() noexcept;
  /// Call this before the communicators are destroyed; abort() does nothing afterwards.
  void forget();

 private:
  std::mutex mutex_;
  Communicators* group_;
};

/// Aborts a group when a thread that waits for its operation is interrupted. Otherwise the peers would wait
/// for a rank that has gone on to something else.
class AbortsWhenInterrupted final : public vdev::Interruptible {
 public:
  enum class When : std::uint8_t {
    kBusyOrFailed,  // for a stream, which may also run tasks of other groups or of none
    kAlways,
  };
  AbortsWhenInterrupted(std::shared_ptr<GroupToAbort> group,
                        const std::shared_ptr<Communicator>& communicator, When when)
      : group_(std::move(group)), communicator_(communicator), when_(when) {}

  void interrupt(const std::string& reason) noexcept override;

 private:
  const std::shared_ptr<GroupToAbort> group_;
  const std::weak_ptr<Communicator> communicator_;
  const When when_;
};

}  // namespace vccl
