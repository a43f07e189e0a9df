// Sparse (COO) tensors of a card.
#define AT_PER_OPERATOR_HEADERS

#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_dimI_native.h>
#include <ATen/ops/_dimV_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_pin_memory_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/is_pinned_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/values_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/operators/op_fallback.hpp"
#include "csrc_device/torch/registration.hpp"

namespace vdev {
namespace {

// Makes a sparse tensor. torch's function puts it on the current card, whatever the card of its parts, so the
// right card is made current.
at::Tensor with_dims(std::int64_t sparse_dim, std::int64_t dense_dim, at::IntArrayRef size,
                     std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                     std::optional<at::Device> device, std::optional<bool> pin_memory) {
  c10::OptionalDeviceGuard current(device);
  return at::native::new_with_dims_sparse(sparse_dim, dense_dim, size, dtype, layout, device, pin_memory);
}

at::Tensor with_dims_and_tensors(std::int64_t sparse_dim, std::int64_t dense_dim, at::SymIntArrayRef size,
                                 const at::Tensor& indices, const at::Tensor& values,
                                 std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                                 std::optional<at::Device> device, std::optional<bool> pin_memory,
                                 std::optional<bool> is_coalesced) {
  c10::DeviceGuard current(values.device());
  return at::native::new_with_dims_and_tensor_sparse_symint(sparse_dim, dense_dim, size, indices, values,
                                                            dtype, layout, device, pin_memory, is_coalesced);
}

at::Tensor empty(at::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                 std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard current(device);
  return at::native::empty_sparse_symint(size, dtype, layout, device, pin_memory, format);
}

at::Tensor clone(const at::Tensor& self, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard current(self.device());
  return at::native::clone_sparse(self, format);
}

// Registers operators that only handle the two strided tensors inside a sparse tensor. torch's own functions
// for these use only strided operators on the same device, so they work for a card as for the CPU. Operators
// that only look at a tensor wait for no stream.
void register_device_independent(torch::Library& m) {
  namespace native = at::native;
  m.impl("_sparse_coo_tensor_with_dims", &with_dims);
  m.impl("_sparse_coo_tensor_with_dims_and_tensors", &with_dims_and_tensors);
  m.impl("empty.memory_format", &empty);
  m.impl("empty_like", &native::empty_like_sparse_coo);
  m.impl("clone", &clone);
  // The next two copy between cards, and between a card and the CPU in both directions.
  m.impl("copy_", &native::copy_sparse_wrapper_);
  m.impl("copy_sparse_to_sparse_", &native::copy_sparse_);
  m.impl("sparse_dim", &native::sparse_dim_sparse);
  m.impl("_dimI", &native::sparse_dim_sparse);
  m.impl("dense_dim", &native::dense_dim_sparse);
  m.impl("_dimV", &native::dense_dim_sparse);
  m.impl("_nnz", &native::_nnz_sparse);
  m.impl("is_coalesced", &native::is_coalesced_sparse);
  m.impl("_coalesced_", &native::_coalesced_sparse_);
  m.impl("_indices", &native::_indices_sparse);
  m.impl("_values", &native::_values_sparse);
  m.impl("indices", &native::indices_sparse);
  m.impl("values", &native::values_sparse);
  m.impl("is_pinned", &native::is_pinned_sparse_coo);
  m.impl("_pin_memory", &native::_pin_memory_sparse_coo);
}

// Both calls are in one block, because the second looks at what the first has registered.
VDEV_LIBRARY_IMPL(aten, sparse_key(), m) {
  register_device_independent(m);
  register_cpu_kernels<c10::DispatchKey::SparseCPU>(m, sparse_key());
}

VDEV_LIBRARY_IMPL(_, sparse_key(), m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_cpu_kernel<c10::DispatchKey::SparseCPU>>());
}

}  // namespace
}  // namespace vdev
