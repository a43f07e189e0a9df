#include "csrc_pg/explanations/circles.hpp"

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "csrc_pg/dumps/own_flight_recorder.hpp"
#include "csrc_pg/explanations/explanations.hpp"
#include "csrc_pg/explanations/other_hosts.hpp"

namespace vccl {
namespace {

constexpr std::int64_t kBetweenLooksNs = 1'000'000'000, kBetweenQuestionsNs = 5'000'000'000;
constexpr std::size_t kMostText = 2500;

/// Something that one thread does now and then, whoever comes first.
class Due {
 public:
  explicit Due(std::int64_t every_ns) : every_ns_(every_ns) {}
  /// Returns whether the last time was long ago. Then the caller does it, and other threads do not.
  bool now() {
    const auto now = base::monotonic_ns();
    auto last = last_.load(std::memory_order_relaxed);
    return now - last >= every_ns_ && last_.compare_exchange_strong(last, now, std::memory_order_relaxed);
  }

 private:
  const std::int64_t every_ns_;
  std::atomic<std::int64_t> last_{0};
};

/// Every rank looks at the ranks of its host, and one rank of each host at those of the others.
bool asks_other_hosts() {
  static Due question(kBetweenQuestionsNs);
  return speaks_for_host() && question.now();
}

}  // namespace

std::string circle_of_calls(When when) {
  static Due look(kBetweenLooksNs);
  const bool at_once = when == When::at_once;
  if (!own_flight_recorder().enabled() || (!at_once && !look.now())) return {};
  try {
    if (when == When::if_first_of_host && !speaks_for_host()) return {};
    auto options = own_job_options();
    if (!at_once && !asks_other_hosts()) options.others = nullptr;
    std::string text;
    for (const Job& job : calls_of_jobs(options)) text += circle_text(job, options);
    return std::string(base::cut_text(text, kMostText));
  } catch (const std::exception&) {
    return {};  // a machine without a free descriptor, for instance; the next look may do better
  }
}

}  // namespace vccl
