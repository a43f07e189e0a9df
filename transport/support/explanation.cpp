#include "transport/explanation.hpp"

#include <atomic>
#include <utility>

namespace vccl {
namespace {

constexpr auto kBeforeTheEnd = std::chrono::seconds(10);

// Relaxed: it is set before the threads that read it are started.
std::atomic<decltype(Explainer::explain)> explain{nullptr};
std::atomic<decltype(Explainer::program_waits)> waits{nullptr};

}  // namespace

void set_explainer(const Explainer& explainer) noexcept {
  explain.store(explainer.explain, std::memory_order_relaxed);
  waits.store(explainer.program_waits, std::memory_order_relaxed);
}

std::string explanation(std::chrono::nanoseconds waited) {
  const auto find_out = explain.load(std::memory_order_relaxed);
  std::string text = find_out ? find_out(waited) : std::string();
  return text.empty() ? text : " " + text;
}

bool program_waits() {
  const auto ask = waits.load(std::memory_order_relaxed);
  return !ask || ask();
}

WaitWarning::WaitWarning(Clock::time_point begin, const Deadline& deadline, Milliseconds warn_after)
    : first_(warn_after.count() > 0 ? begin + warn_after : Clock::time_point::max()),
      last_(deadline.length > 2 * kBeforeTheEnd && warn_after.count() > 0 ? deadline.at - kBeforeTheEnd
                                                                          : Clock::time_point::max()) {}

bool WaitWarning::due(Clock::time_point now) {
  const bool result = now >= first_ || now >= last_;
  if (now >= first_) first_ = Clock::time_point::max();
  if (now >= last_) last_ = Clock::time_point::max();
  return result;
}

}  // namespace vccl
