#include "csrc_pg/operations/call_stack.hpp"

#include <torch/csrc/profiler/combined_traceback.h>

#include <string_view>

#include "base/text.hpp"
#include "csrc_device/torch/program_line.hpp"

namespace vccl {
namespace {

// C++ names of templates may be longer than all of the room that the recorder has for a stack.
constexpr std::size_t kMostOfName = 100;

std::string line_text(std::string_view function, const std::string& file, std::uint64_t line) {
  return base::text(function.substr(0, kMostOfName), '\t', file, '\t', line, '\n');
}

}  // namespace

std::string call_stack(bool cpp) {
  const auto captured = torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, cpp);
  const auto found = torch::symbolize({captured.get()});
  std::string text;
  for (const auto index : found.tracebacks.at(0)) {
    const auto& frame = found.all_frames.at(index);
    text += line_text(frame.funcname, frame.filename, frame.lineno);
  }
  return text;
}

std::uint16_t call_line(FlightRecorder& recorder) {
  const auto& line = vdev::program_line();
  if (line.file.empty()) return 0;
  const auto noted = recorder.line_of(&line);
  if (noted.is_new)
    recorder.write_line(noted.number,
                        line_text(line.function, line.file, static_cast<std::uint64_t>(line.number)));
  return noted.number;
}

}  // namespace vccl
