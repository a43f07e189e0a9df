#include "diagnosis/jobs/frames.hpp"

#include <algorithm>

#include "base/program_files.hpp"
#include "base/text.hpp"
#include "diagnosis/job.hpp"

namespace vccl {
namespace {

bool has_own(const ThreadStack& stack) {
  return std::ranges::any_of(stack.frames, is_own);
}

bool waits_for_autograd(const ThreadStack& stack) {
  return !stack.frames.empty() && stack.frames.front().function == "_engine_run_backward";
}

/// Returns whether threading.Thread made the thread. Autograd's threads are made in C++.
bool is_of_threading(const ThreadStack& stack) {
  return !stack.frames.empty() && stack.frames.back().function == "_bootstrap";
}

}  // namespace

bool is_own(const Frame& frame) {
  return base::is_of_program(frame.file);
}

std::string frame_text(const Frame& frame) {
  const auto slash = frame.file.rfind('/');
  const auto name = slash == std::string::npos ? frame.file : frame.file.substr(slash + 1);
  return base::text(frame.function, " (", name, ":", frame.line, ")");
}

const ThreadStack* telling_stack(const Stacks& stacks) {
  if (stacks.threads.empty()) return nullptr;
  const ThreadStack& main = stacks.threads.front();
  if (!waits_for_autograd(main)) return &main;
  const auto found = std::find_if(stacks.threads.begin() + 1, stacks.threads.end(), [](const auto& stack) {
    return has_own(stack) && !is_of_threading(stack);
  });
  return found == stacks.threads.end() ? &main : &*found;
}

std::string whereabouts(const JobRank& rank) {
  if (rank.activity == Activity::gone) return "has ended";
  if (rank.activity == Activity::stopped) return "is stopped (SIGSTOP; SIGCONT lets it go on)";
  if (rank.activity == Activity::traced) return "is stopped by a debugger";
  std::string verb = name_of(rank.activity);
  const auto& stacks = rank.stacks;
  if (!stacks) return verb + "; its Python stack is not known";
  if (stacks->main_known && stacks->waits)
    verb = "waits";
  else if (stacks->lock_held && rank.activity == Activity::sleeps)
    verb = "is stuck in C code, and Python's lock is held,";
  const ThreadStack* stack = telling_stack(*stacks);
  if (!stack || stack->frames.empty()) return verb + "; its main thread runs no Python";
  const Frame& inner = stack->frames.front();
  const auto own = std::ranges::find_if(stack->frames, is_own);
  if (own == stack->frames.end() || own == stack->frames.begin())
    return base::text(verb, " in ", frame_text(inner));
  return base::text(verb, " in ", frame_text(inner), ", called by ", frame_text(*own));
}

}  // namespace vccl
