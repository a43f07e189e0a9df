// Which of CUDA's kernels are not deterministic.
#pragma once

#include <string>
#include <unordered_map>

#include "csrc_device/torch/facts/cuda_refusals.hpp"

namespace vdev {

/// By the operator's name and overload, as in "addmm.out".
using CudaRefusals = std::unordered_map<std::string, CudaRefusal>;

/// Adds the operators that raise, on CUDA, under torch.use_deterministic_algorithms(True).
void add_nondeterministic(CudaRefusals& table);

/// Returns whether a call of _embedding_bag_dense_backward is for the mode "max".
bool takes_maximum(CudaRefusal::Arguments call);

}  // namespace vdev
