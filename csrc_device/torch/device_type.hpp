// Says which device type and dispatch keys of torch the cards have. No other file names them, but for
// hooks.cpp, which implements an interface of torch for each of the two device types.
//
// The cards are torch's PrivateUse1 device under the name "vdev", or its CUDA device (VDEV_POSE=cuda). The
// choice is made when the module is loaded, so a registration takes its key at run time (registration.hpp).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>
#include <torch/csrc/profiler/stubs/base.h>

#include "csrc_device/runtime/environment.hpp"

namespace vdev {

inline c10::DeviceType device_type() {
  return pose() == Pose::cuda ? c10::DeviceType::CUDA : c10::DeviceType::PrivateUse1;
}

/// Returns the key of strided tensors on a card.
inline c10::DispatchKey dense_key() {
  return pose() == Pose::cuda ? c10::DispatchKey::CUDA : c10::DispatchKey::PrivateUse1;
}

/// Returns the key of autograd for strided tensors on a card. All such tensors have it but those that were
/// made in inference mode.
inline c10::DispatchKey autograd_key() {
  return pose() == Pose::cuda ? c10::DispatchKey::AutogradCUDA : c10::DispatchKey::AutogradPrivateUse1;
}

/// Returns the key of sparse COO tensors on a card.
inline c10::DispatchKey sparse_key() {
  return pose() == Pose::cuda ? c10::DispatchKey::SparseCUDA : c10::DispatchKey::SparsePrivateUse1;
}

/// Returns the key of sparse CSR, CSC, BSR and BSC tensors on a card.
inline c10::DispatchKey sparse_compressed_key() {
  return pose() == Pose::cuda ? c10::DispatchKey::SparseCsrCUDA : c10::DispatchKey::SparseCsrPrivateUse1;
}

/// Returns the key of quantized tensors on a card.
inline c10::DispatchKey quantized_key() {
  return pose() == Pose::cuda ? c10::DispatchKey::QuantizedCUDA : c10::DispatchKey::QuantizedPrivateUse1;
}

/// Returns the key of strided nested tensors on a card.
inline c10::DispatchKey nested_key() {
  return pose() == Pose::cuda ? c10::DispatchKey::NestedTensorCUDA
                              : c10::DispatchKey::NestedTensorPrivateUse1;
}

/// Returns the key under which autocast for the cards is registered. torch registers CUDA's key itself, in
/// builds without CUDA too.
inline c10::DispatchKey autocast_key() {
  return c10::DispatchKey::AutocastPrivateUse1;
}

/// Returns a key without any kernel of its own. An operator redispatched to it runs its generic form
/// (CompositeExplicitAutograd).
inline c10::DispatchKey key_without_kernels() {
  return c10::DispatchKey::PrivateUse2;
}

/// Returns whether `device` is a card.
inline bool is_card(const c10::Device& device) {
  return device.type() == device_type();
}

/// Hands the cards' events to torch's legacy profiler.
inline void register_profiler_stubs(torch::profiler::impl::ProfilerStubs* stubs) {
  if (pose() == Pose::cuda)
    torch::profiler::impl::registerCUDAMethods(stubs);
  else
    torch::profiler::impl::registerPrivateUse1Methods(stubs);
}

/// Puts `kernel` into a table of torch that has one entry for each device type (ATen/native/DispatchStub.h).
template <class Stub, class Kernel>
void register_in_stub(Stub& stub, Kernel kernel) {
  if (pose() == Pose::cuda)
    stub.set_cuda_dispatch_ptr(kernel);
  else
    stub.set_privateuse1_dispatch_ptr(kernel);
}

}  // namespace vdev
