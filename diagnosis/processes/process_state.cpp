#include "diagnosis/processes/process_state.hpp"

#include <cstdlib>
#include <string>

#include "base/clock.hpp"
#include "base/files.hpp"
#include "base/process.hpp"
#include "base/text.hpp"

namespace vccl {
namespace {

// A process that used this part of a processor computes. A thread that waits and looks now and then uses
// about a hundredth.
constexpr std::int64_t kComputesPercent = 10;

}  // namespace

const char* name_of(Activity activity) {
  switch (activity) {
    case Activity::computes:
      return "computes";
    case Activity::sleeps:
      return "sleeps";
    case Activity::stopped:
      return "stopped";
    case Activity::traced:
      return "traced";
    case Activity::gone:
      return "dead";
  }
  return "unknown";
}

ActivityWatch::ActivityWatch(pid_t pid) : pid_(pid), computed_(computed()), since_ns_(base::monotonic_ns()) {}

std::uint64_t ActivityWatch::computed() const {
  const std::string folder = base::text("/proc/", pid_, "/task");
  std::uint64_t sum = 0;
  base::for_each_entry(folder.c_str(), [&](int, const char* name) {
    if (name[0] == '.') return;
    const std::string thread = base::text(folder, '/', std::string_view(name));
    if (base::first_line(thread + "/comm").starts_with("vccl ")) return;
    sum += std::strtoull(base::first_line(thread + "/schedstat").c_str(), nullptr, 10);
  });
  return sum;
}

Activity ActivityWatch::look() const {
  switch (base::status_of(pid_).state) {
    case 'X':
    case 'x':
    case 'Z':
      return Activity::gone;
    case 'T':
      return Activity::stopped;
    case 't':
      return Activity::traced;
    default:
      break;
  }
  const std::int64_t passed = base::monotonic_ns() - since_ns_;
  const auto now = computed();
  const auto used = now > computed_ ? static_cast<std::int64_t>(now - computed_) : 0;
  return used * 100 >= passed * kComputesPercent ? Activity::computes : Activity::sleeps;
}

}  // namespace vccl
