// The stack of a call, for the flight recorder and for checks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torch {
struct CapturedTraceback;
}

namespace vccl {

/// One Python frame of a call.
struct CallFrame {
  std::string function, file;
  std::int64_t line = 0;
};

/// Returns the frames that were captured, the innermost first. That takes much longer than capturing them.
std::vector<CallFrame> frames_of(torch::CapturedTraceback& captured);
/// Captures the Python frames of the calling thread. Takes the GIL for a moment if there is an interpreter.
std::shared_ptr<torch::CapturedTraceback> capture_frames();

/// Returns the Python frames of the calling thread, the innermost first, each as a line
/// "function\tfile\tline". Takes the GIL for a moment if there is an interpreter. Call this only if stacks
/// were asked for: it takes some microseconds.
std::string call_stack();

}  // namespace vccl
