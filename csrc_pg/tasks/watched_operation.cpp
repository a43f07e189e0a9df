#include "csrc_pg/tasks/watched_operation.hpp"

#include "base/text.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/device_type.hpp"

namespace vccl {

namespace races = vdev::races;

namespace {

void add(std::vector<races::Touched>& to, const CollectivePlan& plan) {
  const auto& touched = plan.touched();
  to.insert(to.end(), touched.on_cards().begin(), touched.on_cards().end());
  to.insert(to.end(), touched.on_host().begin(), touched.on_host().end());
}

}  // namespace

std::vector<races::Touched> touched_by(std::span<const CollectivePlan> plans,
                                       std::span<const MessageCall> messages) {
  std::vector<races::Touched> touched;
  if (!races::is_on()) [[likely]]
    return touched;
  for (const auto& plan : plans) add(touched, plan);
  for (const auto& message : messages) add(touched, message.plan);
  return touched;
}

races::Point watch_collective(const Request& request, const DeviceCommunicator& where,
                              const std::vector<races::Touched>& touched) {
  if (!races::is_on()) [[likely]]
    return nullptr;
  const races::CallScope scope(request.name);
  if (request.device.is_cpu()) {
    if (request.async || request.blocks_host)
      return races::access(races::lane_of(*where.stream()), nullptr, scope.site(), touched);
    races::host_access(scope.site(), touched);
    return nullptr;
  }
  const auto current = vdev::current_stream(request.device.index());
  if (!request.async) {
    races::access(*current, scope.site(), touched);
    return nullptr;
  }
  races::wait(*where.stream(), *current);
  races::access(*where.stream(), scope.site(), touched);
  races::keep_for(races::lane_of(*where.stream()), touched);
  return races::point_of(*where.stream());
}

races::Point watch_messages(const char* name, const MessageLane& lane, int peer,
                            const std::vector<races::Touched>& touched) {
  if (!races::is_on()) [[likely]]
    return nullptr;
  const races::CallScope scope(name);
  // As with NCCL, the messages of two ranks have one order, and those with different peers have none.
  const auto whom = peer < 0 ? std::string("messages") : base::text("messages with rank ", peer);
  const int card = lane.device().is_cpu() ? -1 : lane.device().index();
  const auto own =
      races::lane_of_operations(&lane, peer + 1, base::text(whom, " on ", lane.device().str()), card);
  const auto current = card < 0 ? nullptr : vdev::current_stream(card);
  races::keep_for(own, touched);
  return races::access(own, current.get(), scope.site(), touched);
}

}  // namespace vccl
