#include "csrc_pg/explanations/explanations.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

#include <c10/core/ScalarType.h>

#include "base/text.hpp"
#include "csrc_pg/collectives/dtype.hpp"
#include "csrc_pg/dumps/own_flight_recorder.hpp"
#include "csrc_pg/dumps/stack_requests.hpp"
#include "csrc_pg/explanations/other_hosts.hpp"
#include "transport/deadlock_watch.hpp"
#include "transport/explanation.hpp"

namespace vccl {
namespace {

/// Returns the name that Python has for a dtype: "float32". One that no collective takes has C++'s name.
const char* python_name(std::uint8_t dtype) {
  if (dtype >= static_cast<std::uint8_t>(c10::ScalarType::NumOptions)) return nullptr;
  const auto type = static_cast<c10::ScalarType>(dtype);
  switch (type) {
#define VCCL_CASE(dtype, name, torch, bytes, kind, Number) \
  case c10::ScalarType::torch:                             \
    return name;
    VCCL_DTYPES(VCCL_CASE)
#undef VCCL_CASE
    default:
      return c10::toString(type);
  }
}

/// Returns how long a rank that has waited this long waits for the stacks of the others. They answer within
/// milliseconds, or never, unless the machine is busy.
std::chrono::milliseconds stack_patience(std::chrono::nanoseconds waited) {
  constexpr auto kLeast = std::chrono::milliseconds(500), kMost = std::chrono::milliseconds(2000);
  return std::clamp(std::chrono::duration_cast<std::chrono::milliseconds>(waited), kLeast, kMost);
}

constexpr std::size_t kMostExplanation = 1500;

/// Returns why the waits on other hosts are not known, as a sentence, or an empty text.
std::string silence_of_other_hosts() {
  const auto why = DeadlockWatch::of_this_process().far_silence();
  return why.empty() ? why : base::text("What ranks on other hosts wait for is not known: ", why, ".");
}

/// Returns what was found out about the job of this process.
std::string explain(std::chrono::nanoseconds waited) {
  const std::string silence = silence_of_other_hosts();
  if (!own_flight_recorder().enabled()) return silence;
  const auto own = own_flight_recorder().process();
  auto options = own_job_options();
  options.stack_patience = stack_patience(waited);
  options.lasting = std::min<std::chrono::nanoseconds>(options.lasting, waited / 2);
  std::string text;
  for (const Job& job : diagnose(options).jobs) {
    const auto is_own = [&](const auto& entry) { return entry.second.pid == own.pid && !entry.second.far; };
    if (std::ranges::none_of(job.ranks, is_own)) continue;
    for (const Finding& finding : job.findings) text += (text.empty() ? "" : " ") + finding.text;
  }
  if (!silence.empty()) text += (text.empty() ? "" : " ") + silence;
  return std::string(base::cut_text(text, kMostExplanation));
}

std::string explain_order(const std::string& group, std::uint64_t rank, std::uint64_t other) {
  if (!own_flight_recorder().enabled()) return {};
  const auto options = own_job_options();
  std::string text;
  for (const Job& job : calls_of_jobs(options))
    text += order_text(job, group, static_cast<int>(rank), static_cast<int>(other), options);
  return std::string(base::cut_text(text, kMostExplanation));
}

/// Calls the function. An error or a warning is worth as much without the text.
template <class Function, class... Arguments>
std::string text_or_nothing(const Function& function, const Arguments&... arguments) {
  try {
    return function(arguments...);
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace

void explain_waits_by_diagnosis() {
  set_explainer({.explain = [](std::chrono::nanoseconds waited) { return text_or_nothing(explain, waited); },
                 .explain_order =
                     [](const std::string& group, std::uint64_t rank, std::uint64_t other) {
                       return text_or_nothing(explain_order, group, rank, other);
                     },
                 .program_waits = &main_thread_may_wait});
}

DiagnosisOptions diagnosis_options() {
  DiagnosisOptions options;
  options.dtype_name = &python_name;
  return options;
}

DiagnosisOptions own_job_options() {
  auto options = diagnosis_options();
  options.only_job = get_text(own_flight_recorder().process().job);
  options.others = &other_hosts();
  return options;
}

}  // namespace vccl
