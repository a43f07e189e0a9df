#include "csrc_pg/operations/call_stack.hpp"

#include <torch/csrc/profiler/combined_traceback.h>

#include "base/text.hpp"

namespace vccl {

std::string call_stack() {
  const auto trace = torch::CapturedTraceback::gather(true, false, false);
  const auto found = torch::symbolize({trace.get()});
  std::string text;
  for (const auto index : found.tracebacks.at(0)) {
    const auto& frame = found.all_frames.at(index);
    text += base::text(frame.funcname, '\t', frame.filename, '\t', frame.lineno, '\n');
  }
  return text;
}

}  // namespace vccl
