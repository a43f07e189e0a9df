// Starts schedules as VDEV_SCHEDULE does (base/schedule.hpp, docs/inside/schedules.md).
#pragma once

#include <cstdint>
#include <string>

namespace vdev {

/// Starts the schedule that VDEV_SCHEDULE would start with the value `text`, and VDEV_SCHEDULE_TURNS with
/// `turns`, in the place of the one that is on. RANK and WORLD_SIZE number this process. Throws
/// InvalidArgument, and std::system_error if the memory behind `turns` cannot be had.
void start_schedule(const std::string& text, const std::string& turns);
/// Returns how often start_schedule() was called.
std::uint64_t schedules_started() noexcept;

}  // namespace vdev
