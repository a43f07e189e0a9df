#include "csrc_pg/operations/program_checks.hpp"

#include <atomic>
#include <cstdio>
#include <utility>

#include <torch/csrc/profiler/combined_traceback.h>

#include "base/fork.hpp"
#include "base/text.hpp"
#include "csrc_pg/collectives/finite.hpp"

namespace vccl {

namespace {

struct ProgramChecks {
  const CheckVariables variables = read_check_variables();
};

}  // namespace

const CheckVariables& program_checks() {
  static base::OnePerProcess<ProgramChecks> one;
  return one.get().variables;
}

void check_finite(Communicator& communicator, const Call& call, bool output, std::size_t number,
                  std::size_t calls) {
  const Buffers lengths = buffers_of(call, communicator.rank(), communicator.size());
  const void* buffer = output ? call.output : call.input;
  const std::size_t count = output ? lengths.output : lengths.input;
  if (!buffer || count == 0) return;
  const auto found = find_nonfinite(call.dtype, buffer, count);
  if (!found) return;
  const Error error(
      ErrorCode::invalid,
      base::text(communicator.own_text_in_group(), ": element ", *found, " of ", count, " of the ",
                 output ? "output" : "input",
                 calls > 1 ? base::text(" of call ", number + 1, " of ", calls, " in a batch,") : "", " of ",
                 describe(signature_of(call)), " is NaN or infinite (VCCL_CHECK=nan",
                 output ? ":outputs" : "", ")"));
  communicator.fail(error.code(), error.what());
  throw error;
}

struct LeakCheck::State {
  std::string who, what;
  // Finding the frames takes about a microsecond, and reading their names much longer.
  std::shared_ptr<torch::CapturedTraceback> frames;
  std::atomic<bool> used{false};
};

LeakCheck::LeakCheck(std::unique_ptr<State> state) : state_(std::move(state)) {}

std::unique_ptr<LeakCheck> LeakCheck::begin(std::string who, std::string what) {
  if (!program_checks().leaks) return nullptr;
  auto state = std::make_unique<State>();
  state->who = std::move(who);
  state->what = std::move(what);
  state->frames = torch::CapturedTraceback::gather(true, false, false);
  return std::unique_ptr<LeakCheck>(new LeakCheck(std::move(state)));
}

void LeakCheck::note_use() noexcept {
  state_->used.store(true, std::memory_order_relaxed);
}

LeakCheck::~LeakCheck() {
  if (state_->used.load(std::memory_order_relaxed)) return;
  try {
    std::string place;
    const auto found = torch::symbolize({state_->frames.get()});
    for (const auto index : found.tracebacks.at(0)) {
      const auto& frame = found.all_frames.at(index);
      if (frame.filename.find("/torch/") != std::string::npos) continue;
      place = base::text(" It was called in ", frame.funcname, " (", frame.filename, ":", frame.lineno, ").");
      break;
    }
    std::fprintf(stderr, "[vccl] %s: nobody has waited for its %s (VCCL_CHECK=leak).%s\n",
                 state_->who.c_str(), state_->what.c_str(), place.c_str());
  } catch (const std::exception&) {
    // A report must not end the program.
  }
}

}  // namespace vccl
