// How the profiler shows operators and copies on a card's lanes.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "csrc_device/runtime/activity.hpp"

namespace vdev {

/// Returns the label of the kernel of `op`: "aten.add.Tensor".
ActivityLabel label_of(const c10::OperatorHandle& op);

/// Returns the label of a copy, with CUDA's name for its direction: "Memcpy HtoD (Pinned -> Device)".
ActivityLabel label_of_copy(const at::Tensor& from, const at::Tensor& to);

/// Returns the label of the reading of the one element of `tensor`.
ActivityLabel label_of_reading(const at::Tensor& tensor);

}  // namespace vdev
