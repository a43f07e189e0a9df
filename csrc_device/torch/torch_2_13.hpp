// What this room takes from torch 2.13 that another version may have moved. One place to look on an upgrade.
//
// - c10::impl::DeviceGuardImplInterface (guard.cpp): getStreamNativeHandle and getDeviceCapability are
// recent.
// - at::PrivateUse1HooksInterface (hooks.cpp): 2.13 calls the virtuals overridden there and no others.
// - c10::DeviceAllocator and at::HostAllocator (allocator.cpp, host_allocator.cpp): figures by
// CachingDeviceAllocator::
//   DeviceStats and at::HostStats.
// - at::native functions registered as they are (tensor_alloc.cpp): view, unfold, as_strided_tensorimpl,
// set_tensor_...
#pragma once

#include <torch/version.h>

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR != 13
#error "vccl is written for torch 2.13.x: build it against that version."
#endif

namespace vdev {

/// The torch this module was compiled against, as "2.13.0". vccl refuses to load it into another minor
/// version.
inline constexpr const char* kTorchVersion = TORCH_VERSION;

}  // namespace vdev
