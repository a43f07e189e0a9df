// What a collective demands of its tensors. Everything here raises before anything moves and concerns this
// rank alone.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace vccl {

/// A dense tensor on a card or on the CPU, not a lazy negation or conjugate. Raises ValueError, or
/// NotImplementedError for layouts that have no collective.
void check_tensor(const at::Tensor& tensor, const char* operation);

/// The one tensor of the list, checked. The c10d interface is older than one device a process.
const at::Tensor& single(const std::vector<at::Tensor>& tensors, const char* operation);

/// Same device and dtype as `like`.
void check_alike(const at::Tensor& tensor, const at::Tensor& like, const char* operation);

/// One output a rank, each as large as `input`.
void check_gather_list(const std::vector<at::Tensor>& outputs, const at::Tensor& input, int size,
                       const char* operation);

/// `output` holds `size` times the elements of `input`.
void check_gathered(const at::Tensor& output, const at::Tensor& input, int size, const char* operation);

}  // namespace vccl
