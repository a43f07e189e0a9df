// The cards, for programs and operators in C++ (docs/extending.md, docs/cpp.md).
//
// The header is installed as <vccl/device.hpp> and includes nothing of the project. vccl keeps the meaning of
// these declarations from one release to the next (<vccl/version.hpp>). "Must" says what the caller has to
// do; every other sentence is a promise of vccl's.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>

#include <functional>
#include <string>

namespace vdev {

/// Makes the cards a device of torch under the name "vdev", and lets their streams end before the process
/// does. A program in C++ must call it before it uses a card. Further calls, and calls where Python has
/// imported torch, do nothing. Throws if another library has registered the device that the cards are to be.
void initialize();

/// The dispatch keys under which an operator must be registered for the cards. They are the keys of
/// PrivateUse1, or of CUDA where the cards pose as CUDA, so they are known only once the library is loaded:
///
///     m.impl("name", torch::dispatch(vdev::keys().kernel, TORCH_FN(function)));
struct Keys {
  c10::DispatchKey kernel;
  c10::DispatchKey autograd;
  c10::DispatchKey autocast;
};
const Keys& keys();

/// Runs `kernel` in the order of the calling thread's current stream.
///
/// The call returns at once, and the kernel runs as a task of the stream, on any thread, without the
/// interpreter's lock. With VDEV_LAUNCH=blocking the kernel runs before the call returns. In a capture the
/// task goes into the graph, and runs at every replay.
///
/// `reads` must name every tensor whose memory the kernel reads, and `writes` every tensor whose memory it
/// writes. All of them must be strided tensors on one card; vccl skips undefined tensors. The kernel must
/// write every element of `writes`: once it has run, vccl takes all memory from the first to the last element
/// of each of them for valid. A tensor of which the kernel keeps some elements must therefore be one of
/// `reads`, too. If a collective that should have written one of `reads` has failed, vccl does not run the
/// kernel, and reading one of `writes` raises that failure.
///
/// The kernel must take pointers, sizes and strides from the tensors before the call, and must not keep the
/// tensors. vccl keeps the pointers valid until the kernel has run, even if the program frees the tensors
/// meanwhile, because freed memory is reused in the order of the stream. The kernel may read and write the
/// memory of a card like any other memory. An exception that leaves the kernel becomes the error of the
/// stream, and the next synchronisation raises it. Profiles and errors show `name`.
///
/// Throws c10::Error if a tensor is not on a card, if the tensors are on several cards, or if there is no
/// tensor.
void launch_kernel(std::string name, at::TensorList reads, at::TensorList writes,
                   std::function<void()> kernel);

/// Blocks until everything enqueued on the card's streams has run, and throws their first error.
void synchronize(int card);

}  // namespace vdev
