#include "transport/explanation.hpp"

#include <atomic>
#include <utility>

namespace vccl {
namespace {

constexpr auto kBeforeTheEnd = std::chrono::seconds(10);

// Relaxed: it is set before the threads that read it are started.
std::atomic<decltype(Explainer::explain)> explain{nullptr};
std::atomic<decltype(Explainer::explain_order)> explain_order{nullptr};
std::atomic<decltype(Explainer::program_waits)> waits{nullptr};

/// Returns the text as one that continues another text.
std::string continued(std::string text) {
  return text.empty() ? text : " " + std::move(text);
}

}  // namespace

void set_explainer(const Explainer& explainer) noexcept {
  explain.store(explainer.explain, std::memory_order_relaxed);
  explain_order.store(explainer.explain_order, std::memory_order_relaxed);
  waits.store(explainer.program_waits, std::memory_order_relaxed);
}

std::string explanation(std::chrono::nanoseconds waited) {
  const auto find_out = explain.load(std::memory_order_relaxed);
  return continued(find_out ? find_out(waited) : std::string());
}

std::string explanation_of_order(const std::string& group, std::uint64_t rank, std::uint64_t other) {
  const auto find_out = explain_order.load(std::memory_order_relaxed);
  return continued(find_out ? find_out(group, rank, other) : std::string());
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
