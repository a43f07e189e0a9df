#include "csrc_device/torch/threads/interpreter.hpp"

#include "base/text.hpp"

namespace vdev {
namespace {

Interpreter& of_this_process() {
  static Interpreter functions;
  return functions;
}

}  // namespace

std::string PythonLine::text() const {
  return file.empty() ? "" : base::text(file, ":", number, " (", function, ")");
}

const PythonLine& PythonLine::none() {
  static const auto& line = *new PythonLine();
  return line;
}

const Interpreter& interpreter() {
  return of_this_process();
}

void set_interpreter(const Interpreter& functions) {
  of_this_process() = functions;
}

}  // namespace vdev
