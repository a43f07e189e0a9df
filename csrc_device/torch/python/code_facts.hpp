// What is known of a Python function, for messages that name a line in it.
#pragma once

#include <Python.h>
#include <frameobject.h>

#include <cstdint>
#include <unordered_map>

#include "csrc_device/torch/threads/interpreter.hpp"

namespace vdev {

/// Is kept with a code object.
struct CodeFacts {
  enum class Kind : std::uint8_t {
    program,        // base::is_of_program()
    library,        // of neither torch nor vccl
    tells_nothing,  // of torch or vccl, or one that only calls the next function
  };
  Kind kind;
  std::unordered_map<int, const PythonLine*> lines;  // that were asked for, by the place of the instruction
};

/// Returns the facts of this code. They are found once, because a walk over a deep stack would otherwise
/// compare each file's name with a dozen patterns. The caller holds the interpreter's lock, and a reference
/// to the code as long as it uses the facts.
CodeFacts& facts_of(PyCodeObject* code);

/// Returns the line at which the frame of this code stands. The caller holds the interpreter's lock.
const PythonLine& line_of(PyFrameObject* frame, PyCodeObject* code, CodeFacts& facts);

}  // namespace vdev
