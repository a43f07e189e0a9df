// What programs and operators in C++ use of the cards (docs/extending.md, docs/cpp.md).
//
// The header is installed as <vccl/device.hpp> and includes nothing of the project. What it declares keeps
// its meaning from one release of vccl to the next.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>

#include <functional>
#include <string>

namespace vdev {

/// Makes the cards a device of torch under the name "vdev", and lets their streams end before the process
/// does. A program in C++ calls this first. Further calls, and calls where Python has imported torch, do
/// nothing. Throws if another library has registered the device that the cards are to be.
void initialize();

/// The dispatch keys under which an operator is registered for the cards. They are those of PrivateUse1, or
/// of CUDA where the cards pose as CUDA, so they are only known when the library is loaded:
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
/// interpreter's lock. With VDEV_LAUNCH=blocking it runs before the call returns. In a capture the task goes
/// into the graph, and runs at every replay.
///
/// `reads` and `writes` are the tensors whose memory the kernel uses. All of them are strided tensors on one
/// card; undefined ones are left out. A failure of a collective that should have written one of `reads` goes
/// on to `writes`, and the kernel does not run. `writes` are written from their first to their last element.
///
/// The kernel takes pointers, sizes and strides from the tensors when it is made, and not the tensors: memory
/// that the program frees is reused in the order of the stream, so the pointers stay valid until the kernel
/// has run. The memory of a card can be read and written as any other. What the kernel throws is the error of
/// the stream, which the next synchronisation raises. `name` stands in profiles and errors.
///
/// Throws c10::Error if a tensor is not on a card, or the tensors are on several, or there is none.
void launch_kernel(std::string name, at::TensorList reads, at::TensorList writes,
                   std::function<void()> kernel);

/// Blocks until everything enqueued on the card's streams has run, and throws their first error.
void synchronize(int card);

}  // namespace vdev
