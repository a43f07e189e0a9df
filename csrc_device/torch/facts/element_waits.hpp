// Tells for which calls of operators the host has to wait for elements of a card, on a GPU as well.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include "csrc_device/torch/facts/operator_facts.hpp"

namespace vdev {

/// Returns whether the shapes of the results depend on elements of the arguments.
bool waits_for_elements(const OperatorFacts& facts, c10::ArrayRef<c10::IValue> arguments);

}  // namespace vdev
