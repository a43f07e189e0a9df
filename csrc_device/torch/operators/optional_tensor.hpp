// Arguments of operators that a caller may leave out.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace vdev {

using OptionalTensor = std::optional<at::Tensor>;

/// Returns whether there is a tensor. Callers leave one out in either of two ways: they pass none, or one
/// that is undefined.
inline bool given(const OptionalTensor& tensor) {
  return tensor.has_value() && tensor->defined();
}

}  // namespace vdev
