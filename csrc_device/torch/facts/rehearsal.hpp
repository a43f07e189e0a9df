// Finds out what a call's results look like without running the call.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "csrc_device/torch/facts/call_signature.hpp"

namespace vdev {

/// Runs the operator's kernel once on the calling thread, on zeros in ordinary memory that has the shape of
/// the arguments, and remembers what it did. Reads and writes nothing of the program's. Returns null if the
/// arguments are too large for this, or if the kernel raises or cannot run on zeros: a call with the real
/// elements then tells more.
KnownCallPtr rehearse(const c10::OperatorHandle& op, const OperatorFacts& facts, c10::DispatchKey kernel,
                      c10::ArrayRef<c10::IValue> arguments, const CallSignature& signature);

}  // namespace vdev
