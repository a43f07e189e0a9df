// Models of GPUs whose figures a card can show (VDEV_PROFILE).
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace vdev {

/// Holds the figures that a program sees of a GPU's model. They are the vendor's. No figure changes how fast
/// a card computes.
struct Profile {
  std::string_view id;       // the value of VDEV_PROFILE
  std::string_view name;     // as the driver writes it
  int major = 0, minor = 0;  // compute capability
  std::size_t memory = 0;    // bytes that the driver shows
  int multiprocessors = 0;
  int clock_khz = 0, memory_clock_khz = 0, memory_bus_bits = 0;
  std::size_t l2_cache = 0;                         // bytes
  int threads_per_multiprocessor = 0;               // at most
  std::size_t shared_memory_of_multiprocessor = 0;  // bytes
};

/// Returns the known profiles.
std::span<const Profile> profiles();

/// Returns the profile with that id, or null.
const Profile* find_profile(std::string_view id);

}  // namespace vdev
