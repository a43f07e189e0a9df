#include "csrc_pg/operations/program_checks.hpp"

#include <cstdio>
#include <utility>

#include "base/fork.hpp"
#include "base/text.hpp"
#include "csrc_pg/collectives/content.hpp"
#include "csrc_pg/collectives/finite.hpp"

namespace vccl {

namespace {

struct ProgramChecks {
  const CheckVariables variables = read_check_variables();
};

/// Returns " of all_reduce(...)", or " of call 2 of 3 in a batch, of all_reduce(...)".
std::string of_call(const Call& call, std::size_t number, std::size_t calls) {
  return base::text(calls > 1 ? base::text(" of call ", number + 1, " of ", calls, " in a batch,") : "",
                    " of ", describe(signature_of(call)));
}

bool has_equal_results(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::all_gather ||
         collective == Collective::broadcast;
}

/// Throws the error of an element of `what` that is NaN or infinite, here and on the peers, which must not
/// wait for this rank. Does nothing if all `count` elements are finite.
void refuse_nonfinite(Communicator& communicator, Dtype dtype, const void* elements, std::size_t count,
                      const std::string& what, const char* check) {
  const auto found = find_nonfinite(dtype, elements, count);
  if (!found) return;
  const Error error(
      ErrorCode::invalid,
      base::text(communicator.own_text_in_group(), ": element ", *found, " of ", count, " of the ", what,
                 " is NaN or infinite (VCCL_CHECK=", std::string_view(check), ")"));
  communicator.fail(error.code(), error.what());
  throw error;
}

}  // namespace

const CheckVariables& program_checks() {
  static base::OnePerProcess<ProgramChecks> one;
  return one.get().variables;
}

std::optional<Nonfinite> nonfinite_input(const Communicator& communicator, const Call& call,
                                         std::size_t number, std::size_t calls) {
  const std::size_t count = buffers_of(call, communicator.rank(), communicator.size()).input;
  if (!call.input || count == 0) return std::nullopt;
  const auto found = find_nonfinite(call.dtype, call.input, count);
  if (!found) return std::nullopt;
  return Nonfinite{*found, count, number, calls};
}

void check_finite_output(Communicator& communicator, const Call& call, std::size_t number,
                         std::size_t calls) {
  const std::size_t count = buffers_of(call, communicator.rank(), communicator.size()).output;
  if (!call.output || count == 0) return;
  refuse_nonfinite(communicator, call.dtype, call.output, count,
                   base::text("output", of_call(call, number, calls)), "nan:outputs");
}

void check_finite_message(Communicator& communicator, const Signature& message, const void* elements,
                          int to) {
  refuse_nonfinite(communicator, static_cast<Dtype>(message.dtype), elements, message.count,
                   base::text("tensor of send to ", communicator.names().rank(to)), "nan");
}

void check_content(Communicator& communicator, const Call& call, const Deadline& deadline, std::size_t number,
                   std::size_t calls) {
  if (!has_equal_results(call.collective)) return;
  const std::size_t count = buffers_of(call, communicator.rank(), communicator.size()).output;
  if (count == 0) return;
  const auto difference = find_difference(communicator, call.dtype, call.output, count, deadline);
  if (!difference) return;
  // Every rank has found the same and fails the communicator with the same text.
  const Error error(ErrorCode::mismatch,
                    base::text("the ranks of group ", communicator.name(), " differ in the output",
                               of_call(call, number, calls), " (VCCL_CHECK=content): ",
                               describe(*difference, communicator.names()), ", of ", count,
                               ". Something has written to the tensor before the collective was over, for "
                               "instance an operator on another stream."));
  communicator.fail(error.code(), error.what());
  throw error;
}

LeakCheck::LeakCheck(std::string who, std::string what)
    : who_(std::move(who)), what_(std::move(what)), line_(vdev::program_line()) {}

LeakCheck::~LeakCheck() {
  if (used_.load(std::memory_order_relaxed)) return;
  try {
    std::string place;
    if (!line_.file.empty())
      place = base::text(" It was called in ", line_.function, " (", line_.file, ":", line_.number, ").");
    std::fprintf(stderr, "[vccl] %s: nobody has waited for its %s (VCCL_CHECK=leak).%s\n", who_.c_str(),
                 what_.c_str(), place.c_str());
  } catch (const std::exception&) {
    // A report must not end the program.
  }
}

}  // namespace vccl
