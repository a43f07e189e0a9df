#include "csrc_pg/dumps/circles.hpp"

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "csrc_pg/dumps/explanations.hpp"
#include "csrc_pg/dumps/own_flight_recorder.hpp"

namespace vccl {
namespace {

constexpr std::int64_t kBetweenLooksNs = 1'000'000'000;
constexpr std::size_t kMostText = 2500;

/// Returns whether the last look was long ago. Then the caller looks, and other threads do not.
bool is_due() {
  static std::atomic<std::int64_t> last_look{0};
  const auto now = base::monotonic_ns();
  auto last = last_look.load(std::memory_order_relaxed);
  return now - last >= kBetweenLooksNs &&
         last_look.compare_exchange_strong(last, now, std::memory_order_relaxed);
}

}  // namespace

std::string circle_of_calls(bool at_once) {
  if (!own_flight_recorder().enabled() || (!at_once && !is_due())) return {};
  try {
    const auto options = own_job_options();
    std::string text;
    for (const Job& job : calls_of_jobs(options)) text += circle_text(job, options);
    return std::string(base::cut_text(text, kMostText));
  } catch (const std::exception&) {
    return {};  // a machine without a free descriptor, for instance; the next look may do better
  }
}

}  // namespace vccl
