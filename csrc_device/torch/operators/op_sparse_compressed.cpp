// Sparse CSR, CSC, BSR and BSC tensors of a card.
#define AT_PER_OPERATOR_HEADERS

#include <ATen/core/stack.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_pin_memory_native.h>
#include <ATen/ops/ccol_indices_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/col_indices_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/crow_indices_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/is_pinned_native.h>
#include <ATen/ops/row_indices_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/values_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <cstddef>

#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/operators/op_fallback.hpp"
#include "csrc_device/torch/registration.hpp"

namespace vdev {
namespace {

namespace native = at::native;
constexpr auto kOnCpu = c10::DispatchKey::SparseCsrCPU;

// torch's function makes the parts on the current card if the device has no index.
at::Tensor empty_compressed(at::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                            std::optional<at::Layout> layout, std::optional<at::Device> device,
                            std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard current(device);
  return native::empty_sparse_compressed_symint(size, dtype, layout, device, pin_memory, format);
}

at::Tensor clone_compressed(const at::Tensor& self, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard current(self.device());
  return native::clone_sparse_compressed(self, format);
}

// The CPU's kernel asks whether its arguments require a gradient, and keeps what the backward reads only
// then. Kernels see no such thing of a card's tensors, and the backward would read beyond the end. CUDA has
// no kernel.
void reducing_product(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto requires_grad = [&](std::size_t place) {
    return torch::jit::peek(*stack, place, 3).toTensor().requires_grad();
  };
  const bool is_differentiated = at::GradMode::is_enabled() && (requires_grad(0) || requires_grad(1));
  TORCH_CHECK_NOT_IMPLEMENTED(
      pose() != Pose::cuda && !is_differentiated, "Could not run '", op.operator_name(), "' on ",
      device_name(),
      ": torch.sparse.mm(reduce=) works on the CPU alone, as it does beside GPUs. Call "
      "it there, or torch.sparse.mm() without a reduction");
  run_on_cpu_kernel_for(kOnCpu, op, stack);
}

// The first block registers torch's own functions that only handle the three strided tensors inside. They
// work for a card as for the CPU, copy_() also between devices, and they wait for no stream.
VDEV_LIBRARY_IMPL(aten, sparse_compressed_key(), m) {
  m.impl("empty.memory_format", &empty_compressed);
  m.impl("empty_like", &native::empty_like_sparse_csr);
  m.impl("clone", &clone_compressed);
  m.impl("copy_", &native::copy_sparse_compressed_);
  m.impl("crow_indices", &native::crow_indices_sparse_csr);
  m.impl("col_indices", &native::col_indices_sparse_csr);
  m.impl("ccol_indices", &native::ccol_indices_sparse_csr);
  m.impl("row_indices", &native::row_indices_sparse_csr);
  m.impl("values", &native::values_sparse_csr);
  m.impl("_nnz", &native::_nnz_sparse_csr);
  m.impl("sparse_dim", &native::sparse_dim_sparse_csr);
  m.impl("dense_dim", &native::dense_dim_sparse_csr);
  m.impl("is_pinned", &native::is_pinned_sparse_compressed);
  m.impl("_pin_memory", &native::_pin_memory_sparse_compressed);
  m.impl("_sparse_mm_reduce_impl", torch::CppFunction::makeFromBoxedFunction<&reducing_product>());
  register_cpu_kernels<kOnCpu>(m, sparse_compressed_key());
}

VDEV_LIBRARY_IMPL(_, sparse_compressed_key(), m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_cpu_kernel<kOnCpu>>());
}

}  // namespace
}  // namespace vdev
