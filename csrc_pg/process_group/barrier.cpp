// The barrier of a group.
#include <utility>

#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/gil.hpp"
#include "csrc_device/torch/races.hpp"
#include "csrc_device/torch/streams.hpp"
#include "csrc_pg/process_group/process_group.hpp"

namespace vccl {

using vdev::WithoutGil;

// NCCL runs a barrier in the order of one card's communicator, and knows nothing of the others.
bool ProcessGroupVccl::comes_before_barrier(const DeviceCommunicator& entry, int card) const {
  return !entry.device().is_cpu() && (!nccl_.on() || entry.device().index() == card);
}

// A barrier comes after the group's collectives, and after what the card's current stream holds.
void ProcessGroupVccl::watch_barrier(int card) {
  std::vector<vdev::races::Point> before;
  for (const auto& entry : communicators_.all())
    if (comes_before_barrier(*entry, card)) before.push_back(vdev::races::point_of(*entry->stream()));
  if (vdev::card_used(card)) before.push_back(vdev::races::point_of(*vdev::current_stream(card)));
  for (const auto& entry : communicators_.all()) {
    if (!entry->device().is_cpu()) continue;
    for (const auto& point : before) vdev::races::wait(*entry->stream(), point);
  }
}

int ProcessGroupVccl::card_of_barrier(const c10d::BarrierOptions& options) const {
  if (!options.device_ids.empty()) return static_cast<int>(options.device_ids.front());
  if (bound_device_id_ && !bound_device_id_->is_cpu()) return bound_device_id_->index();
  if (!nccl_.on()) return vdev::current_card();
  const auto used = communicators_.used_cards();
  if (!used.empty()) return used.front();
  TORCH_CHECK_VALUE(vdev::card_count() > 0, "barrier: ", names().rank(rank_),
                    " sees no card, and a strict group meets on cards. Look at VDEV_VISIBLE_DEVICES, or set "
                    "VCCL_STRICT=0 on all ranks");
  return static_cast<int>(names().in_job(rank_) % static_cast<std::uint64_t>(vdev::card_count()));
}

ProcessGroupVccl::WorkPtr ProcessGroupVccl::barrier(const c10d::BarrierOptions& options) {
  TORCH_CHECK_VALUE(options.device_ids.size() <= 1,
                    "barrier: backend vccl takes one device id, and was given ", options.device_ids.size());
  const int card = card_of_barrier(options);
  if (nccl_.on()) {
    // The communicator of this card runs the barrier with NCCL.
    WithoutGil without_gil;
    const auto device = vdev::device_of(static_cast<c10::DeviceIndex>(card));
    begin([&] { return communicators_.get(device, effective(options.timeout), "barrier"), nullptr; });
  }

  Request request{c10d::OpType::BARRIER, "barrier",      c10::Device(c10::kCPU), {}, {},
                  options.timeout,       options.asyncOp};
  request.blocks_host = true;
  for (const auto& entry : communicators_.all())
    if (comes_before_barrier(*entry, card)) request.after.push_back(entry->last());
  if (vdev::card_used(card)) {
    vdev::refuse_captured(*vdev::current_stream(card), "barrier, which blocks the host");
    request.after.push_back(vdev::current_stream(card)->record());
  }
  if (vdev::races::is_on()) watch_barrier(card);

  CollectivePlan plan;
  plan.add(Call{.collective = Collective::barrier});
  return launch(std::move(request), std::move(plan));
}

}  // namespace vccl
