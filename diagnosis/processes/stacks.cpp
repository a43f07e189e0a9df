#include "diagnosis/stacks.hpp"

#include <algorithm>
#include <cstdint>

#include "base/text.hpp"
#include "diagnosis/processes/numbers.hpp"

namespace vccl {
namespace {

constexpr std::size_t kMostThreads = 256;
constexpr std::size_t kMostFrames = 128;

/// Reads `  File "train.py", line 12 in step`.
std::optional<Frame> read_frame(std::string_view line) {
  constexpr std::string_view kBegin = "  File \"", kLine = "\", line ", kIn = " in ";
  if (!line.starts_with(kBegin)) return {};
  line.remove_prefix(kBegin.size());
  const auto end = line.rfind(kLine);
  if (end == std::string_view::npos) return {};
  Frame frame;
  frame.file = base::valid_text(line.substr(0, end));
  line.remove_prefix(end + kLine.size());
  const auto in = line.find(kIn);
  if (in == std::string_view::npos || !read_number(line.substr(0, in), frame.line)) return {};
  frame.function = base::valid_text(line.substr(in + kIn.size()));
  return frame;
}

/// Reads "Thread 0x00007f12 (most recent call first):", with "Current thread" for the one that answers, and
/// in newer versions of Python with the thread's name behind the number.
std::optional<ThreadStack> read_thread(std::string_view line) {
  constexpr std::string_view kOther = "Thread ", kCurrent = "Current thread ";
  if (line.starts_with(kCurrent))
    line.remove_prefix(kCurrent.size());
  else if (line.starts_with(kOther))
    line.remove_prefix(kOther.size());
  else
    return {};
  ThreadStack stack;
  if (!read_number(line.substr(0, line.find(' ')), stack.thread, 16)) return {};
  return stack;
}

/// Reads "main 7f12 waits", and puts the stack of that thread first.
void read_main(std::string_view line, Stacks& stacks) {
  std::uint64_t thread = 0;
  const auto space = std::min(line.find(' '), line.size());
  if (!read_number(line.substr(0, space), thread, 16) || thread == 0) return;
  stacks.main_known = true;
  stacks.waits = line.substr(space) == " waits";
  const auto main = std::ranges::find(stacks.threads, thread, &ThreadStack::thread);
  if (main != stacks.threads.end()) std::rotate(stacks.threads.begin(), main, main + 1);
}

}  // namespace

std::optional<Stacks> parse_stacks(std::string_view text) {
  constexpr std::string_view kMain = "main ", kLock = "lock ";
  Stacks stacks;
  while (!text.empty()) {
    const auto end = text.find('\n');
    if (end == std::string_view::npos) break;
    const auto line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (auto thread = read_thread(line)) {
      if (stacks.threads.size() < kMostThreads) stacks.threads.push_back(std::move(*thread));
    } else if (auto frame = read_frame(line)) {
      if (!stacks.threads.empty() && stacks.threads.back().frames.size() < kMostFrames)
        stacks.threads.back().frames.push_back(std::move(*frame));
    } else if (line.starts_with(kMain)) {
      read_main(line.substr(kMain.size()), stacks);
    } else if (line.starts_with(kLock)) {
      stacks.lock_held = line.substr(kLock.size()) == "held";
      return stacks;
    }
  }
  return {};
}

}  // namespace vccl
