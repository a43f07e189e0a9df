#include "csrc_device/runtime/cards/profile.hpp"

#include <algorithm>
#include <array>

namespace vdev {
namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;

// The memory is a little less than the model's name says, because the driver keeps a part for itself.
constexpr std::array<Profile, 10> kProfiles{{
    {"v100-32g", "Tesla V100-SXM2-32GB", 7, 0, 32501 * kMiB, 80, 1530000, 877000, 4096, 6 * kMiB, 2048,
     96 * kKiB},
    {"t4", "Tesla T4", 7, 5, 15095 * kMiB, 40, 1590000, 5001000, 256, 4 * kMiB, 1024, 64 * kKiB},
    {"a100-40g", "NVIDIA A100-SXM4-40GB", 8, 0, 40536 * kMiB, 108, 1410000, 1215000, 5120, 40 * kMiB, 2048,
     164 * kKiB},
    {"a100-80g", "NVIDIA A100-SXM4-80GB", 8, 0, 81050 * kMiB, 108, 1410000, 1593000, 5120, 40 * kMiB, 2048,
     164 * kKiB},
    {"rtx3090", "NVIDIA GeForce RTX 3090", 8, 6, 24259 * kMiB, 82, 1695000, 9751000, 384, 6 * kMiB, 1536,
     100 * kKiB},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 8, 9, 24210 * kMiB, 128, 2520000, 10501000, 384, 72 * kMiB, 1536,
     100 * kKiB},
    {"l4", "NVIDIA L4", 8, 9, 22478 * kMiB, 58, 2040000, 6251000, 192, 48 * kMiB, 1536, 100 * kKiB},
    {"l40s", "NVIDIA L40S", 8, 9, 45488 * kMiB, 142, 2520000, 9001000, 384, 96 * kMiB, 1536, 100 * kKiB},
    {"h100-80g", "NVIDIA H100 80GB HBM3", 9, 0, 81090 * kMiB, 132, 1980000, 2619000, 5120, 50 * kMiB, 2048,
     228 * kKiB},
    {"h200", "NVIDIA H200", 9, 0, 143167 * kMiB, 132, 1980000, 3201000, 6144, 60 * kMiB, 2048, 228 * kKiB},
}};

}  // namespace

std::span<const Profile> profiles() {
  return kProfiles;
}

const Profile* find_profile(std::string_view id) {
  const auto found = std::ranges::find(kProfiles, id, &Profile::id);
  return found == kProfiles.end() ? nullptr : &*found;
}

}  // namespace vdev
