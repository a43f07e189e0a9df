#include "csrc_device/torch/threads/interpreter.hpp"

namespace vdev {
namespace {

Interpreter& of_this_process() {
  static Interpreter functions;
  return functions;
}

}  // namespace

const Interpreter& interpreter() {
  return of_this_process();
}

void set_interpreter(const Interpreter& functions) {
  of_this_process() = functions;
}

}  // namespace vdev
