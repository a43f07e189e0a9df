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

races::Meeting meeting_of(const Members& members, const CollectivePlan& plan, c10::Device device,
                          std::uint64_t number) {
  // A plan of several calls, or without a call, counts as one that all take part in.
  const Call call = plan.calls().size() == 1 ? plan.calls().front() : Call{.collective = Collective::barrier};
  const auto name = [&](auto... what) {
    return base::text(members.id, " ", c10::DeviceTypeName(device.type(), true), " ", what...);
  };
  const bool is_root = members.rank == call.root;
  switch (call.collective) {
    case Collective::broadcast:
    case Collective::scatter:
      return {name("from ", call.root), number, 1, is_root, !is_root};
    case Collective::reduce:
    case Collective::gather:
      return {name("to ", call.root), number, static_cast<std::uint32_t>(members.size - 1), !is_root,
              is_root};
    default:
      return {name("all"), number, static_cast<std::uint32_t>(members.size), true, true};
  }
}

std::vector<races::Meeting> meetings_of(const Members& members, std::span<const MessageCall> messages,
                                        c10::Device device) {
  std::vector<races::Meeting> meetings;
  for (const auto& message : messages) {
    if (message.peer < 0) continue;
    const int from = message.sends ? members.rank : message.peer;
    const int to = message.sends ? message.peer : members.rank;
    auto name = base::text(members.id, " ", c10::DeviceTypeName(device.type(), true), " message ", from,
                           " to ", to, " ", message.tag.text());
    const auto number = races::next_meeting(name);
    meetings.push_back({std::move(name), number, 1, message.sends, !message.sends});
  }
  return meetings;
}

namespace {

/// Does nothing for null, or if nobody waits for this rank.
void meet(const races::Meeting* meeting, const races::Point& before) {
  if (races::shares_memory() && meeting != nullptr && meeting->publishes) races::come_to(*meeting, before);
}

/// Returns null for null, or if the rank waits for nobody.
races::Point end_behind(const races::Meeting* meeting) {
  return races::shares_memory() && meeting != nullptr && meeting->waits ? races::end_of(*meeting) : nullptr;
}

races::Point access_on(const vdev::Stream& stream, races::Site site,
                       const std::vector<races::Touched>& touched, const races::Meeting* meeting) {
  meet(meeting, races::point_of(stream));
  races::access(stream, site, touched);
  if (const auto end = end_behind(meeting)) races::wait(stream, end);
  return races::point_of(stream);
}

}  // namespace

races::Point watch_collective(const Request& request, const DeviceCommunicator& where,
                              const std::vector<races::Touched>& touched, const races::Meeting* meeting) {
  if (!races::is_on()) [[likely]]
    return nullptr;
  const races::CallScope scope(request.name);
  if (request.device.is_cpu()) {
    if (request.async || request.blocks_host)
      return access_on(*where.stream(), scope.site(), touched, meeting);
    meet(meeting, races::host_point());
    races::host_access(scope.site(), touched);
    if (const auto end = end_behind(meeting)) races::host_waits_for(end);
    return nullptr;
  }
  const auto current = vdev::current_stream(request.device.index());
  if (!request.async) {
    access_on(*current, scope.site(), touched, meeting);
    return nullptr;
  }
  races::wait(*where.stream(), *current);
  const auto end = access_on(*where.stream(), scope.site(), touched, meeting);
  races::hold(end, touched);
  return end;
}

races::Point watch_messages(const char* name, const MessageLane& lane, int peer,
                            const std::vector<races::Touched>& touched,
                            const std::vector<races::Meeting>& meetings) {
  if (!races::is_on()) [[likely]]
    return nullptr;
  const races::CallScope scope(name);
  // As with NCCL, the messages of two ranks have one order, and those with different peers have none.
  const auto whom = peer < 0 ? std::string("messages") : base::text("messages with rank ", peer);
  const int card = lane.device().is_cpu() ? -1 : lane.device().index();
  const auto own =
      races::lane_of_operations(&lane, peer + 1, base::text(whom, " on ", lane.device().str()), card);
  const auto current = card < 0 ? nullptr : vdev::current_stream(card);
  const auto held = [&](races::Point end) {
    if (current) races::hold(end, touched);
    return end;
  };
  if (meetings.empty()) return held(races::access(own, current.get(), scope.site(), touched));
  for (const auto& meeting : meetings) meet(&meeting, races::access(own, current.get(), scope.site(), {}));
  races::access(own, current.get(), scope.site(), touched);
  for (const auto& meeting : meetings)
    if (const auto end = end_behind(&meeting)) races::wait(own, end);
  return held(races::access(own, current.get(), scope.site(), {}));
}

}  // namespace vccl
