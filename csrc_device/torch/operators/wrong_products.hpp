// Products of matrices that are wrong on purpose (faults/faults.hpp).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace vdev {

/// Changes one element of what an operator has returned, behind it on its stream, if the operator is a
/// product of matrices and the plan of faults says so. Call this only if faults::on().
void damage_product(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

}  // namespace vdev
