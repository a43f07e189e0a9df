// The tensors of one argument of an operator.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>

namespace vdev {

/// Calls `function` with each tensor of an argument, which may be a tensor, a list of them or a list of
/// optional ones. Tensors may be undefined.
template <class Function>
void for_each_tensor(const c10::IValue& argument, const Function& function) {
  if (argument.isTensor()) {
    function(argument.toTensor());
  } else if (argument.isTensorList()) {
    for (const at::Tensor& tensor : argument.toTensorList()) function(tensor);
  } else if (argument.isList()) {
    for (const c10::IValue& element : argument.toListRef()) for_each_tensor(element, function);
  }
}

}  // namespace vdev
