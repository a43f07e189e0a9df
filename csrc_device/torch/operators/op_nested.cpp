// Strided nested tensors of a card. (Nested tensors of the layout jagged are Python's, over dense tensors.)
#define AT_PER_OPERATOR_HEADERS

#include <ATen/ops/_nested_tensor_size_native.h>
#include <ATen/ops/_nested_tensor_storage_offsets_native.h>
#include <ATen/ops/_nested_tensor_strides_native.h>
#include <ATen/ops/_nested_view_from_buffer_native.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/empty_like_native.h>
#include <torch/library.h>

#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/operators/op_fallback.hpp"
#include "csrc_device/torch/registration.hpp"

namespace vdev {
namespace {

constexpr auto kNestedCpu = c10::DispatchKey::NestedTensorCPU;

// The first block registers torch's own functions that handle the dense buffer inside, or the sizes, which
// are on the CPU. They copy between devices, and wait for no stream.
VDEV_LIBRARY_IMPL(aten, nested_key(), m) {
  m.impl("_nested_tensor_size", &at::native::_nested_tensor_size);
  m.impl("_nested_tensor_strides", &at::native::_nested_tensor_strides);
  m.impl("_nested_tensor_storage_offsets", &at::native::_nested_tensor_storage_offsets);
  m.impl("_to_copy", &at::native::_to_copy_nested);
  m.impl("clone", &at::native::clone_nested);
  m.impl("copy_", &at::native::copy_nested_);
  m.impl("empty_like", &at::native::empty_like_nested);
  register_cpu_kernels<kNestedCpu>(m, nested_key());
}

// Makes a nested tensor over a dense one. torch's function reads the sizes on the host, but
// torch.load(map_location=) puts them on the card.
at::Tensor view_from_buffer(const at::Tensor& buffer, const at::Tensor& sizes, const at::Tensor& strides,
                            const at::Tensor& offsets) {
  return at::native::_nested_view_from_buffer(buffer, sizes.cpu(), strides.cpu(), offsets.cpu());
}

VDEV_LIBRARY_IMPL(aten, dense_key(), m) {
  m.impl("_nested_view_from_buffer", &view_from_buffer);
}

VDEV_LIBRARY_IMPL(_, nested_key(), m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_cpu_kernel<kNestedCpu>>());
}

}  // namespace
}  // namespace vdev
