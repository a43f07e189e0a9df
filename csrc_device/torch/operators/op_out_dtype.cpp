// Products of float16 or bfloat16 with results of float32 (out_dtype), which only CUDA has kernels of.
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/kernels/kernel_scope.hpp"
#include "csrc_device/torch/registration.hpp"

namespace vdev {
namespace {

using at::ScalarType;
using at::Tensor;

void check_out_dtype(const Tensor& factor, ScalarType out) {
  const auto type = factor.scalar_type();
  const bool widens = out == at::kFloat && (type == at::kHalf || type == at::kBFloat16);
  TORCH_CHECK(out == type || widens,
              "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs, and is ", out, " for ",
              type);
}

Tensor mm(const Tensor& one, const Tensor& other, ScalarType out) {
  check_out_dtype(one, out);
  const KernelScope scope;
  return at::mm(one.to(out), other.to(out));
}

Tensor bmm(const Tensor& one, const Tensor& other, ScalarType out) {
  check_out_dtype(one, out);
  const KernelScope scope;
  return at::bmm(one.to(out), other.to(out));
}

Tensor addmm(const Tensor& self, const Tensor& one, const Tensor& other, ScalarType out,
             const at::Scalar& beta, const at::Scalar& alpha) {
  check_out_dtype(one, out);
  const KernelScope scope;
  return at::addmm(self.to(out), one.to(out), other.to(out), beta, alpha);
}

Tensor baddbmm(const Tensor& self, const Tensor& one, const Tensor& other, ScalarType out,
               const at::Scalar& beta, const at::Scalar& alpha) {
  check_out_dtype(one, out);
  const KernelScope scope;
  return at::baddbmm(self.to(out), one.to(out), other.to(out), beta, alpha);
}

template <auto function, class... Arguments>
Tensor& into(Arguments... arguments, Tensor& out) {
  const Tensor result = function(arguments...);
  const KernelScope scope;
  out.resize_(result.sizes());
  return out.copy_(result);
}

VDEV_LIBRARY_IMPL(aten, dense_key(), m) {
  m.impl("mm.dtype", &mm);
  m.impl("mm.dtype_out", &into<&mm, const Tensor&, const Tensor&, ScalarType>);
  m.impl("bmm.dtype", &bmm);
  m.impl("bmm.dtype_out", &into<&bmm, const Tensor&, const Tensor&, ScalarType>);
  m.impl("addmm.dtype", &addmm);
  m.impl("addmm.dtype_out", &into<&addmm, const Tensor&, const Tensor&, const Tensor&, ScalarType,
                                  const at::Scalar&, const at::Scalar&>);
  m.impl("baddbmm.dtype", &baddbmm);
  m.impl("baddbmm.dtype_out", &into<&baddbmm, const Tensor&, const Tensor&, const Tensor&, ScalarType,
                                    const at::Scalar&, const at::Scalar&>);
}

}  // namespace
}  // namespace vdev
