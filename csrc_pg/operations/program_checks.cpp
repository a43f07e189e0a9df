#include "csrc_pg/operations/program_checks.hpp"

#include <cstdio>
#include <utility>

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

LeakCheck::LeakCheck(std::string who, std::string what)
    : who_(std::move(who)), what_(std::move(what)), frames_(capture_frames()) {}

LeakCheck::~LeakCheck() {
  if (used_.load(std::memory_order_relaxed)) return;
  try {
    std::string place;
    for (const CallFrame& frame : frames_of(*frames_)) {
      if (frame.file.find("/torch/") != std::string::npos) continue;
      place = base::text(" It was called in ", frame.function, " (", frame.file, ":", frame.line, ").");
      break;
    }
    std::fprintf(stderr, "[vccl] %s: nobody has waited for its %s (VCCL_CHECK=leak).%s\n", who_.c_str(),
                 what_.c_str(), place.c_str());
  } catch (const std::exception&) {
    // A report must not end the program.
  }
}

}  // namespace vccl
