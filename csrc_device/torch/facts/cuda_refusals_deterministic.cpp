#include "csrc_device/torch/facts/cuda_refusals_deterministic.hpp"

#include <ATen/core/Tensor.h>

#include <initializer_list>

namespace vdev {
namespace {

using Arguments = CudaRefusal::Arguments;

bool always(Arguments) {
  return true;
}

// The reduction of nll_loss2d_forward.
bool averages_or_sums(Arguments call) {
  return call[3].toInt() != 0;
}

// The weights of bincount.
bool has_weights(Arguments call) {
  return call[1].isTensor() && call[1].toTensor().defined();
}

// The mode and `sparse` of _embedding_bag_backward, whose kernel calls the dense one.
bool takes_dense_maximum(Arguments call) {
  return call[8].toInt() == 2 && !call[9].toBool();
}

bool counts_floats(Arguments call) {
  return call[0].toTensor().is_floating_point();
}

// scatter(reduce=) of the elements that call[2] names. CUDA makes the sum in another way.
bool multiplies(Arguments call) {
  return call[2].toTensor().numel() > 0 && call[4].toStringView() == "multiply";
}

bool makes_product(Arguments call) {
  return call[2].toTensor().numel() > 0 && call[4].toStringView() == "prod";
}

}  // namespace

bool takes_maximum(Arguments call) {
  return call[7].toInt() == 2;
}

// From torch 2.13.0 for CUDA: the functions that call alertNotDeterministic(), and the names that they give.
void add_nondeterministic(CudaRefusals& table) {
  const auto add = [&](const char* kernel, std::initializer_list<const char*> operators,
                       bool (*varies)(Arguments) = & always) {
    for (const char* op : operators) {
      table[op].varies = varies;
      table[op].varying_name = kernel;
    }
  };
  add("adaptive_avg_pool2d_backward_cuda", {"_adaptive_avg_pool2d_backward"});
  add("adaptive_avg_pool3d_backward_cuda", {"_adaptive_avg_pool3d_backward"});
  add("adaptive_avg_pool3d_backward_out_cuda", {"adaptive_avg_pool3d_backward.grad_input"});
  add("adaptive_max_pool2d_backward_cuda",
      {"adaptive_max_pool2d_backward", "adaptive_max_pool2d_backward.grad_input"});
  add("avg_pool3d_backward_cuda", {"avg_pool3d_backward", "avg_pool3d_backward.grad_input"});
  add("max_pool3d_with_indices_backward_cuda", {"max_pool3d_with_indices_backward"});
  add("max_pool3d_with_indices_backward_out_cuda", {"max_pool3d_with_indices_backward.grad_input"});
  add("fractional_max_pool2d_backward_cuda",
      {"fractional_max_pool2d_backward", "fractional_max_pool2d_backward.grad_input"});
  add("fractional_max_pool3d_backward_cuda", {"fractional_max_pool3d_backward"});
  add("fractional_max_pool3d_backward_out_cuda", {"fractional_max_pool3d_backward.grad_input"});
  add("grid_sampler_2d_backward_cuda", {"grid_sampler_2d_backward"});
  add("grid_sampler_3d_backward_cuda", {"grid_sampler_3d_backward"});
  add("ctc_loss_backward_gpu", {"_ctc_loss_backward", "_ctc_loss_backward.Tensor"});
  add("nll_loss2d_forward_out_cuda_template", {"nll_loss2d_forward", "nll_loss2d_forward.output"},
      &averages_or_sums);
  add("embedding_bag_backward_cuda_max", {"_embedding_bag_dense_backward"}, &takes_maximum);
  add("embedding_bag_backward_cuda_max", {"_embedding_bag_backward"}, &takes_dense_maximum);
  add("_histc_cuda with floating point input", {"histc", "histc.out"}, &counts_floats);
  add("_bincount_cuda", {"bincount"}, &has_weights);
  add("median CUDA with indices output", {"median.dim_values", "nanmedian.dim_values"});
  add("index_reduce_cuda", {"index_reduce", "index_reduce_", "index_reduce.out"});
  add("scatter_reduce_cuda_kernel",
      {"scatter.reduce", "scatter_.reduce", "scatter.reduce_out", "scatter.value_reduce",
       "scatter_.value_reduce", "scatter.value_reduce_out"},
      &multiplies);
  add("scatter_reduce_cuda_prod_", {"scatter_reduce.two", "scatter_reduce_.two", "scatter_reduce.two_out"},
      &makes_product);
  add("reflection_pad1d_backward_out_cuda",
      {"reflection_pad1d_backward", "reflection_pad1d_backward.grad_input"});
  add("reflection_pad3d_backward_out_cuda",
      {"reflection_pad3d_backward", "reflection_pad3d_backward.grad_input"});
  add("replication_pad1d_backward_cuda",
      {"replication_pad1d_backward", "replication_pad1d_backward.grad_input"});
  add("replication_pad2d_backward_cuda", {"replication_pad2d_backward"});
  add("replication_pad2d_backward_out_cuda", {"replication_pad2d_backward.grad_input"});
  add("replication_pad3d_backward_cuda", {"replication_pad3d_backward"});
  add("replication_pad3d_backward_out_cuda", {"replication_pad3d_backward.grad_input"});
  add("upsample_linear1d_backward_out_cuda",
      {"upsample_linear1d_backward", "upsample_linear1d_backward.grad_input"});
  add("upsample_bilinear2d_backward_out_cuda",
      {"upsample_bilinear2d_backward", "upsample_bilinear2d_backward.grad_input"});
  add("upsample_bicubic2d_backward_out_cuda",
      {"upsample_bicubic2d_backward", "upsample_bicubic2d_backward.grad_input"});
  add("upsample_bilinear2d_aa_backward_out_cuda",
      {"_upsample_bilinear2d_aa_backward", "_upsample_bilinear2d_aa_backward.grad_input"});
  add("upsample_bicubic2d_aa_backward_out_cuda",
      {"_upsample_bicubic2d_aa_backward", "_upsample_bicubic2d_aa_backward.grad_input"});
  add("upsample_trilinear3d_backward_out_cuda",
      {"upsample_trilinear3d_backward", "upsample_trilinear3d_backward.grad_input"});
  add("put_", {"put_"});
}

}  // namespace vdev
