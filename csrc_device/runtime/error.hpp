// Errors of the card runtime, without torch; csrc_device/torch turns them into torch's exceptions.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace vdev {

/// The base class of everything that the runtime throws on purpose.
class CardError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Says that the card's capacity is reached. what() reads like CUDA's text, with sizes in MiB or GiB.
class OutOfMemory : public CardError {
 public:
  using CardError::CardError;
};

/// Says that a child of fork() touched a card that its parent had used. what() is CUDA's text.
class BadFork : public CardError {
 public:
  BadFork();
};

/// Says that an argument is wrong, or that there is no card or stream with the given number.
class InvalidArgument : public CardError {
 public:
  using CardError::CardError;
};

}  // namespace vdev
