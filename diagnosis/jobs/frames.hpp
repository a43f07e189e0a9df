// Which frames of a stack are the user's own code.
#pragma once

#include <string>

#include "diagnosis/stacks.hpp"

namespace vccl {

/// Returns whether the frame belongs to none of Python's and its packages' libraries.
bool is_own(const Frame& frame);

/// Returns "step (train.py:12)".
std::string frame_text(const Frame& frame);

}  // namespace vccl
