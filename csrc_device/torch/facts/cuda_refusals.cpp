#include "csrc_device/torch/facts/cuda_refusals.hpp"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/facts/capability.hpp"
#include "csrc_device/torch/facts/cuda_refusals_deterministic.hpp"

namespace vdev {
namespace {

using Arguments = CudaRefusal::Arguments;
using at::ScalarType;

constexpr const char* kHint =
    ". CUDA's kernel refuses this, and the cards pose as CUDA. The CPU's kernel takes it: use another dtype, "
    "or "
    "compute on the CPU";

[[noreturn]] void refuse(const char* kernel, ScalarType type) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, '"', kernel, "\" not implemented for '", c10::toString(type), "'",
                              kHint);
}

ScalarType type_of(const c10::IValue& argument) {
  return argument.toTensor().scalar_type();
}

bool is_empty(const c10::IValue& argument) {
  return argument.isTensor() && argument.toTensor().defined() && argument.toTensor().numel() == 0;
}

bool is_integer(ScalarType type) {
  return c10::isIntegralType(type, /*includeBool=*/false);
}

bool is_reduced(ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16;
}

template <std::size_t argument>
void no_integers(Arguments call, const char* kernel) {
  if (is_integer(type_of(call[argument]))) refuse(kernel, type_of(call[argument]));
}

// CUDA returns before it looks at the dtype if there is nothing to multiply.
template <std::size_t argument>
void no_integer_products(Arguments call, const char* kernel) {
  if (is_integer(type_of(call[argument])) && !std::ranges::any_of(call, is_empty))
    refuse(kernel, type_of(call[argument]));
}

void no_reduced_floats(Arguments call, const char* kernel) {
  if (is_reduced(type_of(call[0]))) refuse(kernel, type_of(call[0]));
}

void no_histogram_of_reduced_floats(Arguments call, const char* kernel) {
  TORCH_CHECK(type_of(call[0]) != at::kHalf, "HalfTensor is not supported", kHint);
  no_reduced_floats(call, kernel);
}

void floats_only(Arguments call, const char* kernel) {
  if (!c10::isFloatingType(type_of(call[0]))) refuse(kernel, type_of(call[0]));
}

void no_bfloat16_maximum(Arguments call, const char* kernel) {
  if (type_of(call[0]) == at::kBFloat16 && takes_maximum(call)) refuse(kernel, at::kBFloat16);
}

// The reductions of scatter_reduce(), and the older ones of scatter(reduce=), at call[4].
void no_reductions_of_booleans(Arguments call, const char* kernel) {
  const auto type = type_of(call[0]);
  const auto reduction = call[4].toStringView();
  if (is_empty(call[2]) || reduction == "sum" || reduction == "add") return;
  const bool is_complex = c10::isComplexType(type);
  if (type == at::kBool || (is_complex && reduction != "amax" && reduction != "amin")) refuse(kernel, type);
}

void no_unsigned(Arguments call, const char* kernel) {
  const auto type = type_of(call[0]);
  if (type == at::kUInt16 || type == at::kUInt32 || type == at::kUInt64) refuse(kernel, type);
}

// cuDNN, which is asked first unless it is switched off, says what it lacks itself.
void no_integer_convolution(Arguments call, const char* kernel) {
  const auto type = type_of(call[0]);
  if (!is_integer(type) || std::ranges::any_of(call, is_empty)) return;
  if (!at::globalContext().userEnabledCuDNN()) refuse(kernel, type);
  const bool is_known = type == at::kByte || type == at::kChar || type == at::kInt;
  TORCH_CHECK(!is_known, "GET was unable to find an engine to execute this computation", kHint);
  TORCH_CHECK(false, "getCudnnDataTypeFromScalarType() not supported for ", c10::toString(type), kHint);
}

// cuFFT transforms float16 along sizes that are powers of two. Only the last one can be longer in the result.
void sizes_of_half_transform(Arguments call, const char* op) {
  const auto& input = call[0].toTensor();
  if (input.scalar_type() != at::kHalf && input.scalar_type() != at::kComplexHalf) return;
  const auto dims = call[1].toIntVector();
  std::vector<std::int64_t> sizes;
  for (const auto dim : dims) sizes.push_back(input.size(dim));
  if (std::string_view(op) == "_fft_c2r" && !sizes.empty()) sizes.back() = call[3].toInt();
  for (const auto size : sizes)
    TORCH_CHECK(
        std::has_single_bit(static_cast<std::uint64_t>(size)),
        "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, "
        "but got a signal size of",
        at::IntArrayRef(sizes), kHint);
}

// CUDA's kernel takes the memory of weight and bias as that of the input's dtype. The dtypes of autocast
// agree.
void norm_of_one_type(Arguments call, const char* op) {
  const auto type = type_of(call[0]);
  if (!is_reduced(type) || is_empty(call[0])) return;
  const std::size_t weight = std::string_view(op) == "native_layer_norm" ? 2 : 1;
  for (const auto& parameter : {call[weight], call[weight + 1]}) {
    if (!parameter.isTensor() || !parameter.toTensor().defined()) continue;
    TORCH_CHECK(type_of(parameter) == type, "expected scalar type ", type, " but found ", type_of(parameter),
                kHint);
  }
}

constexpr const char* kHintOfSizes = ". The cards could do it; GPUs do not.";

void sizes_of_int_mm(Arguments call, const char*) {
  const auto& one = call[0].toTensor();
  const auto& other = call[1].toTensor();
  if (one.dim() != 2 || other.dim() != 2) return;  // the CPU's kernel says so
  TORCH_CHECK(one.size(0) > 16, "self.size(0) needs to be greater than 16, but got ", one.size(0),
              kHintOfSizes);
  TORCH_CHECK(one.size(1) > 0 && one.size(1) % 8 == 0,
              "self.size(1) needs to be greater than 0 and a multiple of 8, but got ", one.size(1),
              kHintOfSizes);
  TORCH_CHECK(other.size(1) > 0 && other.size(1) % 8 == 0,
              "mat2.size(1) needs to be greater than 0 and a multiple of 8, but got ", other.size(1),
              kHintOfSizes);
}

void matrices_of_scaled_mm(Arguments call, const char*) {
  const auto& one = call[0].toTensor();
  const auto& other = call[1].toTensor();
  if (one.dim() != 2 || other.dim() != 2) return;
  TORCH_CHECK(capability_of(card(current_card())) >= (Capability{.major = 8, .minor = 9}),
              "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or "
              "ROCm MI300+. The cards show another one: set VDEV_PROFILE, to h100-80g for example");
  TORCH_CHECK(one.size(1) % 16 == 0,
              "Expected trailing dimension of mat1 to be divisible by 16 but got mat1 shape: (", one.size(0),
              "x", one.size(1), ")", kHintOfSizes);
  TORCH_CHECK(other.size(0) % 16 == 0 && other.size(1) % 16 == 0, "mat2 shape (", other.size(0), "x",
              other.size(1), ") must be divisible by 16", kHintOfSizes);
  TORCH_CHECK(one.stride(1) == 1 && other.stride(0) == 1,
              "Only multiplication of row-major and column-major matrices is supported by cuBLASLt",
              kHintOfSizes);
  TORCH_CHECK(type_of(call[0]) != at::kFloat8_e5m2 || type_of(call[1]) != at::kFloat8_e5m2,
              "Multiplication of two Float8_e5m2 matrices is not supported", kHintOfSizes);
}

void no_kernel(Arguments, const char* op) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "Could not run 'aten::", op,
      "' with arguments from the 'CUDA' backend. This could be because the operator doesn't exist for this "
      "backend. CUDA has no kernel of it, and the cards pose as CUDA: compute on the CPU");
}

// From torch 2.13.0 for CUDA: the dtypes that its kernels are compiled for, and the names in their errors. An
// operator is listed if the CPU's kernel takes more.
CudaRefusals dense_operators() {
  CudaRefusals table;
  const auto add = [&](CudaRefusal::Check check, const char* name,
                       std::initializer_list<const char*> operators) {
    for (const char* op : operators) table[op] = {.check = check, .name = name};
  };
  add(&no_integer_products<0>, "addmm_cuda", {"mm", "mm.out"});
  add(&no_integer_products<1>, "addmm_cuda",
      {"addmm", "addmm.out", "addmm_", "addbmm", "addbmm.out", "addbmm_", "_addmm_activation",
       "_addmm_activation.out"});
  add(&no_integer_products<0>, "baddbmm_cuda", {"bmm", "bmm.out"});
  add(&no_integer_products<1>, "baddbmm_cuda", {"baddbmm", "baddbmm.out", "baddbmm_"});
  add(&no_integer_products<0>, "addmv_impl_cuda", {"mv", "mv.out"});
  add(&no_integer_products<1>, "addmv_impl_cuda", {"addmv", "addmv.out", "addmv_"});
  add(&no_integers<0>, "dot", {"dot", "dot.out", "vdot", "vdot.out"});
  add(&no_integer_convolution, "slow_conv2d_cuda", {"convolution"});
  add(&no_integers<0>, "max_pool2d_with_indices_out_cuda_frame",
      {"max_pool2d_with_indices", "max_pool2d_with_indices.out"});
  add(&no_integers<0>, "max_pool3d_with_indices_out_frame",
      {"max_pool3d_with_indices", "max_pool3d_with_indices.out"});
  add(&no_integers<0>, "avg_pool2d_out_cuda_frame", {"avg_pool2d", "avg_pool2d.out"});
  add(&no_integers<0>, "avg_pool3d_out_cuda", {"avg_pool3d", "avg_pool3d.out"});
  add(&no_integers<0>, "upsample_bilinear2d_out_frame",
      {"upsample_bilinear2d", "upsample_bilinear2d.out", "_upsample_bilinear2d_aa",
       "_upsample_bilinear2d_aa.out", "_upsample_bicubic2d_aa", "_upsample_bicubic2d_aa.out"});
  add(&no_integers<0>, "upsample_bicubic2d_out_frame", {"upsample_bicubic2d", "upsample_bicubic2d.out"});
  add(&no_reduced_floats, "angle_cuda", {"angle", "angle.out"});
  add(&no_reduced_floats, "igamma_cuda", {"igamma", "igamma.out", "igamma_"});
  add(&no_reduced_floats, "igammac_cuda", {"igammac", "igammac.out", "igammac_"});
  add(&no_histogram_of_reduced_floats, "histc", {"histc", "histc.out"});
  add(&floats_only, "masked_scale", {"native_dropout_backward"});
  add(&no_bfloat16_maximum, "embedding_bag_backward_cuda_max", {"_embedding_bag_dense_backward"});
  add(&no_reductions_of_booleans, "cuda_scatter_gather_base_kernel_func",
      {"scatter_reduce.two", "scatter_reduce_.two", "scatter_reduce.two_out", "scatter.reduce",
       "scatter_.reduce", "scatter.reduce_out"});
  add(&no_reductions_of_booleans, "cuda_scatter_fill_base_kernel_reduce_multiply",
      {"scatter.value_reduce", "scatter_.value_reduce", "scatter.value_reduce_out"});
  add(&no_unsigned, "sort", {"sort.stable", "sort.values_stable"});
  add(&no_unsigned, "bitwise_and_cuda",
      {"bitwise_and.Tensor", "bitwise_and_.Tensor", "bitwise_and.Tensor_out"});
  add(&no_unsigned, "bitwise_or_cuda", {"bitwise_or.Tensor", "bitwise_or_.Tensor", "bitwise_or.Tensor_out"});
  add(&no_unsigned, "bitwise_xor_cuda",
      {"bitwise_xor.Tensor", "bitwise_xor_.Tensor", "bitwise_xor.Tensor_out"});
  add(&no_unsigned, "roll_cuda", {"roll"});
  add(&norm_of_one_type, "native_layer_norm", {"native_layer_norm"});
  add(&norm_of_one_type, "native_group_norm", {"native_group_norm"});
  add(&sizes_of_int_mm, "_int_mm", {"_int_mm", "_int_mm.out"});
  add(&matrices_of_scaled_mm, "_scaled_mm", {"_scaled_mm", "_scaled_mm.out"});
  for (const char* op : {"_fft_r2c", "_fft_c2c", "_fft_c2r"})
    table[op] = {.check = &sizes_of_half_transform, .name = op};
  for (const char* op :
       {"histogram.bins_tensor", "histogram.bins_tensor_out", "histogram.bin_ct", "histogram.bin_ct_out",
        "_histogramdd_bin_edges", "_histogramdd_from_bin_cts", "_histogramdd_from_bin_tensors",
        "_upsample_lanczos2d_aa", "_upsample_lanczos2d_aa.out", "slow_conv3d_forward",
        "slow_conv3d_forward.output", "_spdiags", "_add_relu.Tensor", "_add_relu_.Tensor", "_add_relu.out",
        "_add_relu.Scalar", "_add_relu_.Scalar"})
    table[op] = {.check = &no_kernel, .name = op};
  add_nondeterministic(table);
  return table;
}

void no_sparse_products(Arguments call, const char* kernel) {
  const auto& values = call[1].toTensor();  // addmm: the sparse factor
  if (!values.is_sparse() || values._nnz() == 0) return;
  if (is_integer(values.scalar_type()) || is_reduced(values.scalar_type()))
    refuse(kernel, values.scalar_type());
}

void no_sparse_batches(Arguments call, const char* kernel) {
  if (is_integer(type_of(call[0]))) refuse(kernel, type_of(call[0]));
}

CudaRefusals sparse_operators() {
  CudaRefusals table;
  for (const char* op : {"addmm", "addmm.out", "addmm_"})
    table[op] = {.check = &no_sparse_products, .name = "addmm_sparse_cuda"};
  for (const char* op : {"bmm", "bmm.out"})
    table[op] = {.check = &no_sparse_batches, .name = "bmm_sparse_cuda"};
  return table;
}

}  // namespace

void CudaRefusal::apply(Arguments arguments) const {
  if (varies && at::globalContext().deterministicAlgorithms() && varies(arguments))
    at::globalContext().alertNotDeterministic(varying_name);
  if (check) check(arguments, name);
}

const CudaRefusal* cuda_refusal_of(const c10::OperatorName& op, c10::DispatchKey key) {
  if (pose() != Pose::cuda || !op.name.starts_with("aten::")) return nullptr;
  static const auto& dense = *new CudaRefusals(dense_operators());
  static const auto& sparse = *new CudaRefusals(sparse_operators());
  const CudaRefusals* const table = key == c10::DispatchKey::CPU         ? &dense
                                    : key == c10::DispatchKey::SparseCPU ? &sparse
                                                                         : nullptr;
  if (!table) return nullptr;
  auto name = op.name.substr(std::string("aten::").size());
  if (!op.overload_name.empty()) name += "." + op.overload_name;
  const auto found = table->find(name);
  return found == table->end() ? nullptr : &found->second;
}

}  // namespace vdev
