#include "csrc_pg/operations/call_stack.hpp"

#include <torch/csrc/profiler/combined_traceback.h>

#include "base/text.hpp"

namespace vccl {

std::shared_ptr<torch::CapturedTraceback> capture_frames() {
  return torch::CapturedTraceback::gather(true, false, false);
}

std::vector<CallFrame> frames_of(torch::CapturedTraceback& captured) {
  const auto found = torch::symbolize({&captured});
  std::vector<CallFrame> frames;
  for (const auto index : found.tracebacks.at(0)) {
    const auto& frame = found.all_frames.at(index);
    frames.push_back({frame.funcname, frame.filename, static_cast<std::int64_t>(frame.lineno)});
  }
  return frames;
}

std::string call_stack() {
  std::string text;
  for (const CallFrame& frame : frames_of(*capture_frames()))
    text += base::text(frame.function, '\t', frame.file, '\t', frame.line, '\n');
  return text;
}

}  // namespace vccl
