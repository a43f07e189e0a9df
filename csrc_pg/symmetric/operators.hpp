// What the operators of symmetric memory have in common.
#pragma once

#include <ATen/core/Tensor.h>

namespace vccl::symmetric {

/// Raises ValueError unless both tensors are on one device and have as many elements of one dtype.
void check_same_elements(const char* name, const at::Tensor& input, const at::Tensor& output);

}  // namespace vccl::symmetric
