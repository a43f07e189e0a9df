#include "diagnosis/stacks.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "base/descriptor.hpp"
#include "base/files.hpp"
#include "base/peer_file.hpp"
#include "base/process.hpp"
#include "base/text.hpp"

namespace vccl {
namespace {

using base::FileDescriptor;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostBytes = 1 << 20;  // of an answer
constexpr std::size_t kMostThreads = 256;
constexpr std::size_t kMostFrames = 128;
constexpr auto kBetweenLooks = std::chrono::milliseconds(2);

template <class Number>
bool read_number(std::string_view text, Number& number, int radix = 10) {
  if (text.starts_with("0x")) text.remove_prefix(2);
  const auto [stopped, wrong] = std::from_chars(text.data(), text.data() + text.size(), number, radix);
  return wrong == std::errc() && stopped == text.data() + text.size();
}

/// Says what a thread does with the signal.
enum class Handling { none, blocks, takes };

/// Returns `takes` if the process has a handler of the signal, and the thread does not block it.
Handling handling_of(pid_t pid, pid_t thread) {
  std::ifstream file(base::text("/proc/", pid, "/task/", thread, "/status"));
  bool caught = false, blocked = true;
  const auto has_signal = [](std::string_view line) {
    std::uint64_t mask = 0;
    line.remove_prefix(std::min(line.find_first_not_of(" \t", line.find(':') + 1), line.size()));
    return read_number(line, mask, 16) && ((mask >> (kStackSignal - 1)) & 1) != 0;
  };
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("SigCgt:")) caught = has_signal(line);
    if (line.starts_with("SigBlk:")) blocked = has_signal(line);
  }
  return !caught ? Handling::none : blocked ? Handling::blocks : Handling::takes;
}

/// Opens the memory to which the process writes its stacks. The result is empty if it has none.
FileDescriptor open_stack_memory(pid_t pid) {
  FileDescriptor found;
  const std::string begin = base::text("/memfd:", kStackMemoryName);
  base::for_each_entry(base::text("/proc/", pid, "/fd").c_str(), [&](int folder, const char* name) {
    std::array<char, 128> target;
    const auto length = ::readlinkat(folder, name, target.data(), target.size());
    if (length < 0 || !std::string_view(target.data(), static_cast<std::size_t>(length)).starts_with(begin))
      return;
    found = FileDescriptor(::openat(folder, name, O_RDWR | O_NONBLOCK | O_CLOEXEC));
  });
  return found;
}

/// Returns the number of the process's thread that is to get the signal, or 0 if there is none.
pid_t stack_thread_of(pid_t pid) {
  const std::string folder = base::text("/proc/", pid, "/task");
  pid_t found = 0;
  base::for_each_entry(folder.c_str(), [&](int, const char* name) {
    const auto number = base::process_number(name);
    if (number && base::first_line(base::text(folder, '/', *number, "/comm")) == kStackThread)
      found = *number;
  });
  return found;
}

/// Returns whether the thread takes the signal. While it handles the signal of an earlier request it blocks
/// further ones, so a thread that blocks them is looked at again.
bool takes_signal(pid_t pid, pid_t thread, Clock::time_point until) {
  while (true) {
    const Handling handling = handling_of(pid, thread);
    if (handling != Handling::blocks) return handling == Handling::takes;
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

std::string content_of(int file) {
  struct stat status;
  if (::fstat(file, &status) != 0 || status.st_size <= 0) return {};
  std::string text(std::min<std::size_t>(static_cast<std::size_t>(status.st_size), kMostBytes), '\0');
  const auto length = ::pread(file, text.data(), text.size(), 0);
  text.resize(length < 0 ? 0 : static_cast<std::size_t>(length));
  return text;
}

/// Takes the lock of the memory, which whoever asks holds. Returns false if others held it for all the time.
bool lock(int file, Clock::time_point until) {
  while (::flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return true;
}

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

std::optional<Stacks> ask_for_stacks(pid_t pid, std::chrono::milliseconds patience) {
  const auto until = Clock::now() + patience;
  const FileDescriptor memory = open_stack_memory(pid);
  const pid_t thread = stack_thread_of(pid);
  if (!memory || thread == 0 || !takes_signal(pid, thread, until)) return {};
  try {
    base::check_memory_kind(memory.get());
  } catch (const std::runtime_error&) {
    return {};
  }
  if (!lock(memory.get(), until)) return {};
  // The process appends, so its next answer begins at the start again. An older answer that comes late is as
  // good as the one that was asked for.
  if (::ftruncate(memory.get(), 0) != 0 || ::syscall(SYS_tgkill, pid, thread, kStackSignal) != 0) return {};
  while (true) {
    if (auto stacks = parse_stacks(content_of(memory.get()))) return stacks;
    if (Clock::now() >= until) return {};
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

}  // namespace vccl
