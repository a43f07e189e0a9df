// The compute capability that cards show.
#pragma once

#include <compare>

#include "csrc_device/runtime/card.hpp"

namespace vdev {

struct Capability {
  int major = 8, minor = 0;  // what cards without a profile show

  auto operator<=>(const Capability&) const = default;
};

/// Returns that of the card's profile (VDEV_PROFILE).
inline Capability capability_of(Card& card) {
  const auto* const profile = card.properties().profile;
  return profile == nullptr ? Capability{} : Capability{.major = profile->major, .minor = profile->minor};
}

}  // namespace vdev
