#include "csrc_pg/operations/call_stack.hpp"

#include <torch/csrc/profiler/combined_traceback.h>

#include "base/text.hpp"
#include "csrc_device/torch/program_line.hpp"

namespace vccl {
namespace {

std::string line_text(const std::string& function, const std::string& file, std::uint64_t line) {
  return base::text(function, '\t', file, '\t', line, '\n');
}

}  // namespace

std::string call_stack() {
  const auto captured = torch::CapturedTraceback::gather(true, false, false);
  const auto found = torch::symbolize({captured.get()});
  std::string text;
  for (const auto index : found.tracebacks.at(0)) {
    const auto& frame = found.all_frames.at(index);
    text += line_text(frame.funcname, frame.filename, frame.lineno);
  }
  return text;
}

std::string call_line() {
  const auto line = vdev::program_line();
  return line.file.empty() ? ""
                           : line_text(line.function, line.file, static_cast<std::uint64_t>(line.number));
}

}  // namespace vccl
