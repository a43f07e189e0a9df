// Makes a card the calling thread's current card for one scope.
#pragma once

#include "csrc_device/runtime/card.hpp"

namespace vdev {

/// Sets the calling thread's card, so that the allocator takes that card's memory, and sets the previous one
/// again at its end. Throws InvalidArgument if `card` is no visible card's.
class CurrentCard {
 public:
  explicit CurrentCard(int card) : card_(card), previous_(current_card()) {
    if (previous_ != card_) set_current_card(card_);
  }
  ~CurrentCard() {
    if (previous_ != card_) set_current_card(previous_);
  }
  CurrentCard(const CurrentCard&) = delete;
  CurrentCard& operator=(const CurrentCard&) = delete;

 private:
  const int card_, previous_;
};

}  // namespace vdev
