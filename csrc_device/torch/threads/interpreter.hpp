// The functions that the library calls in the Python interpreter, if the process has one.
//
// The library has no symbol of Python, so that programs in C++ can use it (docs/cpp.md). The module vccl._C
// puts in the functions when it is loaded.
#pragma once

#include <functional>
#include <string>

namespace vdev {

/// A line of Python. The file is empty if there is none. Those that functions return live as long as the
/// process, and equal ones have one address.
struct PythonLine {
  std::string function, file;
  int number = 0;

  /// Returns "file.py:12 (function)", or "" if there is none.
  std::string text() const;
  static const PythonLine& none();
};

/// Holds functions of the interpreter. Without one they do nothing.
struct Interpreter {
  /// Releases the interpreter's lock if the calling thread holds it. Returns the state that take_lock() needs
  /// to take it again, or null if the thread did not hold it.
  void* (*release_lock)() = [] { return static_cast<void*>(nullptr); };
  void (*take_lock)(void* state) = [](void*) {};
  /// Returns the innermost line on the calling thread that base::is_of_program(), or else the innermost one
  /// that belongs neither to torch nor to vccl. There is none on autograd's threads, for instance. Takes the
  /// lock.
  const PythonLine& (*line)() = &PythonLine::none;
  /// Returns the same for the main thread, whatever it does. Takes the lock.
  const PythonLine& (*line_of_main_thread)() = &PythonLine::none;
  /// Calls `function`, and makes Python warnings of torch's warnings in it. The caller holds the lock.
  void (*with_warnings)(const std::function<void()>& function) = [](const auto& function) { function(); };
};

/// Returns the functions of the process's interpreter.
const Interpreter& interpreter();
/// Puts in the functions. Call this before other threads use the library.
void set_interpreter(const Interpreter& functions);

}  // namespace vdev
