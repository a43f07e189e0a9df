// Quantized tensors of a card.
#define AT_PER_OPERATOR_HEADERS

#include <ATen/core/Tensor.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/empty_quantized_native.h>
#include <ATen/ops/set_native.h>
#include <c10/core/QScheme.h>
#include <torch/library.h>

#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/kernels/cpu_view.hpp"
#include "csrc_device/torch/kernels/tensor_parts.hpp"
#include "csrc_device/torch/operators/op_fallback.hpp"
#include "csrc_device/torch/registration.hpp"
#include "csrc_device/torch/streams.hpp"
#include "csrc_device/torch/tasks/launch.hpp"

namespace vdev {
namespace {

constexpr auto kQuantizedCpu = c10::DispatchKey::QuantizedCPU;

// Quantizes `source`, which has plain numbers, into `self`.
void quantize_into(at::Tensor& self, const at::Tensor& source) {
  const at::Tensor numbers = source.to(self.device(), at::kFloat);
  CpuView view(card_index(self.device()));
  at::Tensor to = view.show(self);
  const at::Tensor from = view.show(numbers).expand_as(to);
  run_at_call(view.card(), {&numbers}, {&self}, [&] { to.copy_(from); });
}

// Copies into a quantized tensor of a card, or from one. Between quantized tensors, which may be on several
// devices, the target takes over the source's scales.
at::Tensor& copy_quantized_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  TORCH_CHECK(self.is_quantized(), "copy_(): a quantized tensor cannot be copied to a tensor of ",
              self.scalar_type(), ". Use dequantize() or int_repr()");
  if (!source.is_quantized()) {
    quantize_into(self, source);
    return self;
  }
  TORCH_CHECK(self.scalar_type() == source.scalar_type() && self.qscheme() == source.qscheme(),
              "copy_(): quantized tensors must have one dtype and scheme, but self has ", self.scalar_type(),
              " and ", toString(self.qscheme()), ", and the source has ", source.scalar_type(), " and ",
              toString(source.qscheme()));
  TensorParts integers = parts_of(self);
  at::_ops::copy_::call(integers[0], parts_of(source)[0], non_blocking);
  replace_parts(self, source, integers);
  return self;
}

VDEV_LIBRARY_IMPL(aten, quantized_key(), m) {
  m.impl("copy_", &copy_quantized_);
  // torch's own functions, which work for every device.
  m.impl("empty_quantized", &at::native::empty_quantized);
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_quantized_);
  register_cpu_kernels<kQuantizedCpu>(m, quantized_key());
}

VDEV_LIBRARY_IMPL(_, quantized_key(), m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_cpu_kernel<kQuantizedCpu>>());
}

}  // namespace
}  // namespace vdev
