// Chooses the header of the torch that the project is compiled against. What differs between the versions has
// one name in `vdev::torch_version`, and every header in csrc_device/torch/versions defines it for its
// version.
//
// The lines below list the parts of torch that the project uses and that another version may have moved, so
// that an upgrade knows where to look. Each line names a header of torch and the use that is made of it, in
// all files that include the header. Headers of torch that stand in no line are taken for stable:
// tests/project/test_torch_version.py names them.
//
// The device:
// - <ATen/CPUGeneratorImpl.h>: the state of the CPU's generator, which a card's generator has, too.
// - <ATen/ExpandUtils.h>: the shape to which a copy broadcasts, and torch's error for a shape that does not
// fit.
// - <ATen/autocast_mode.h>: the lists of operators, and the kernels that cast their arguments.
// - <ATen/core/CachingHostAllocator.h>: at::HostAllocator and its figures, at::HostStats.
// - <ATen/core/GraphImplInterface.h>: the registry of torch.accelerator.Graph, and its virtuals.
// - <ATen/core/dispatch/Dispatcher.h>: boxed fallbacks, which call the CPU's kernel of any operator.
// - <ATen/detail/CUDAHooksInterface.h>: the same for CUDA, in whose place cards can stand.
// - <ATen/detail/PrivateUse1HooksInterface.h>: torch calls the virtuals that hooks.cpp overrides, and no
// others.
// - <c10/core/AllocatorConfig.h>: the hook that parses PYTORCH_ALLOC_CONF.
// - <c10/core/CachingDeviceAllocator.h>: c10::DeviceAllocator and its figures, DeviceStats.
// - <c10/core/impl/DeviceGuardImplInterface.h>: getStreamNativeHandle and getDeviceCapability are recent.
// - <c10/core/impl/VirtualGuardImpl.h>: finds the guard of a device type that is known at run time alone.
// - <c10/util/ApproximateClock.h>: c10::getTime, the clock of the profiler.
// - <torch/csrc/autograd/autograd.h>: an empty backward, which makes every thread of autograd finish its last
// backward.
// - <torch/csrc/jit/serialization/pickler_helper.h>: the registry of the data that torch.save writes beside a
// tensor.
// - <libkineto.h>, <output_base.h>: the profiler of a device as a plug-in of Kineto, and the form of traces.
// - <torch/csrc/profiler/combined_traceback.h>: where the program stood when it allocated memory.
// - <torch/csrc/profiler/stubs/base.h>: ProfilerStubs, for events of the card in the legacy profiler.
//
// Tensors and operators:
// - <ATen/EmptyTensor.h>: makes tensors over an allocator, and tells how many bytes a shape takes.
// - <ATen/MemoryOverlap.h>: refuses copies between tensors that overlap.
// - <ATen/NestedTensorImpl.h>: the buffer, sizes, strides and offsets of a strided nested tensor.
// - <ATen/SparseCsrTensorImpl.h>: the indices and values of a CSR, CSC, BSR or BSC tensor.
// - <ATen/SparseTensorImpl.h>: the indices and values of a COO tensor.
// - <ATen/core/enum_tag.h>: the tags of operators whose results depend on elements.
// - <ATen/core/LegacyTypeDispatch.h>: at::AutoDispatchBelowAutograd.
// - <ATen/quantized/QTensorImpl.h>, <ATen/quantized/Quantizer.h>: the quantizer, which turns integers into
// numbers.
// - <ATen/native/DispatchStub.h>: the tables of kernels by device type.
// - <ATen/native/Resize.h>: checks of set_().
// - <ATen/native/ResizeCommon.h>: the value with which resize_() fills when algorithms have to be
// deterministic.
// - <ATen/native/SparseTensorUtils.h>: the same for a COO tensor as ATen/SparseTensorImpl.h.
// - <ATen/native/TensorFactories.h>: the value with which empty() fills when algorithms have to be
// deterministic.
// - <ATen/native/transformers/attention.h>: the stub that chooses the kernel of attention.
// - <ATen/native/transformers/sdp_utils_cpp.h>: the conditions of the CPU's flash kernel.
// - <ATen/ops/*_native.h>: kernels of torch that are registered for the device as they are, or are called
// directly.
// - <ATen/ops/*_ops.h>: at::_ops, which calls one overload with the types of its schema.
// - <c10/core/AutogradState.h>: grad mode and inference mode of a thread, which a task takes over.
// - <c10/core/InferenceMode.h>: whether inference mode is on.
// - <c10/core/DispatchKeySet.h>: the keys that are included and excluded by default.
// - <c10/core/GradMode.h>: whether gradients are recorded, which decides whether the CPU uses oneDNN.
// - <c10/core/DispatchKey.h>: the keys of CUDA and of the device that is not built in.
// - <c10/core/QScheme.h>: the names of the ways to quantize.
// - <c10/core/StorageImpl.h>: the count of references of a storage that two tensors share.
// - <c10/util/env.h>: reads a variable of torch as torch does.
// - <c10/core/TensorImpl.h>: sizes, strides, keys and the backend's own data of a tensor.
// - <c10/core/impl/GPUTrace.h>: the tracer that is told of the program's calls about cards.
// - <c10/core/impl/LocalDispatchKeySet.h>: ExcludeDispatchKeyGuard.
//
// The process group:
// - <ATen/record_function.h>: ranges of the profiler.
// - <torch/csrc/distributed/c10d/Backend.hpp>: the virtuals of a backend, and its options.
// - <torch/csrc/distributed/c10d/FlightRecorder.hpp>: the writer of dumps that a program has registered.
// - <torch/csrc/distributed/c10d/GroupRegistry.hpp>: finds the group that an operator names.
// - <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>: the record of a collective for the profiler.
// - <torch/csrc/distributed/c10d/PrefixStore.hpp>, <torch/csrc/distributed/c10d/Store.hpp>,
// <torch/csrc/distributed/c10d/TCPStore.hpp>: the rendezvous store.
// - <torch/csrc/distributed/c10d/ProcessGroup.hpp>: the collectives that sum sparse gradients.
// - <torch/csrc/distributed/c10d/Types.hpp>: the options and reductions of collectives.
// - <torch/csrc/distributed/c10d/Work.hpp>: the handle of a collective, and its virtuals.
// - <torch/csrc/distributed/c10d/reducer_timer.hpp>: the registry of timers that DDP's logging uses.
// - <torch/csrc/distributed/c10d/symm_mem/DMAConnectivity.hpp>: the registry of what tells which cards are
// linked.
// - <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>: the virtuals of symmetric memory, and the
// registries of its allocators.
//
// Python:
// - <torch/csrc/Event.h>: the event inside a Python object.
// - <torch/csrc/Exceptions.h>: turns torch's exceptions into Python's.
// - <torch/csrc/utils/tensor_new.h>: the constructor of legacy tensor types.
// - <torch/csrc/utils/pybind.h>: casts of tensors, devices and generators, and the version of pybind11.
#pragma once

#include <torch/version.h>

#if TORCH_VERSION_MAJOR != 2
#error "vccl is written for torch 2.12 to 2.15: build it against one of these."
#elif TORCH_VERSION_MINOR == 12
#include "csrc_device/torch/versions/torch_2_12.hpp"
#elif TORCH_VERSION_MINOR == 13
#include "csrc_device/torch/versions/torch_2_13.hpp"
#elif TORCH_VERSION_MINOR == 14
#include "csrc_device/torch/versions/torch_2_14.hpp"
#elif TORCH_VERSION_MINOR == 15
#include "csrc_device/torch/versions/torch_2_15.hpp"
#elif defined(VCCL_ANY_TORCH)  // a nightly build of torch is nearest to the newest release
#include "csrc_device/torch/versions/torch_2_15.hpp"
#else
#error "vccl is written for torch 2.12 to 2.15: build it against one of these."
#endif

namespace vdev {

/// The torch this module was compiled against, as "2.13.0". vccl refuses to load it into another minor
/// version.
inline constexpr const char* kTorchVersion = TORCH_VERSION;

}  // namespace vdev
