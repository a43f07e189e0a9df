// Errors of the card runtime. Torch-free; the glue turns them into torch exceptions.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace vdev {

/// Base of everything the runtime throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The card's capacity is reached. what() reads like CUDA's text (sizes in MiB/GiB).
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

/// A child of fork() touched a card that its parent had used.
class BadFork : public Error {
 public:
  using Error::Error;
};

inline constexpr const char* kBadForkText =
    "Cannot re-initialize vdev in forked subprocess. To use vdev with multiprocessing, you must use the "
    "'spawn' "
    "start method";

/// A card number, a stream id or an argument that does not exist.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

}  // namespace vdev
