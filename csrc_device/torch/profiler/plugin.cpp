// The cards' part of torch.profiler: Kineto makes a session of it for every trace.
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>

#include <c10/util/ApproximateClock.h>
#include <c10/util/Exception.h>
#include <libkineto.h>

#include "base/clock.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "csrc_device/runtime/activity.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/torch/gil.hpp"
#include "csrc_device/torch/profiler/trace.hpp"
#include "csrc_device/torch/registration.hpp"
#include "csrc_device/torch/streams.hpp"

namespace vdev {
namespace {

using libkineto::ActivityType;

// What makes a trace one of the cards. A trace of the host alone asks for launches too, but not for these.
constexpr ActivityType kTypesOfCards[] = {ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY,
                                          ActivityType::GPU_USER_ANNOTATION};

/// Returns what is added to monotonic times to get Kineto's. Of several readings it takes the one that was
/// interrupted least.
std::int64_t clock_offset() {
  std::int64_t offset = 0, shortest = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i < 20; ++i) {
    const auto before = base::monotonic_ns();
    const auto kinetos = c10::getTime();
    const auto took = base::monotonic_ns() - before;
    if (took < shortest) {
      shortest = took;
      offset = kinetos - before - took / 2;
    }
  }
  return offset;
}

/// One trace. Kineto calls start(), stop() and processTrace() in this order, on one thread, and what is
/// called between the first two on any thread.
class CardSession final : public libkineto::IActivityProfilerSession {
 public:
  explicit CardSession(const std::set<ActivityType>& types) : types_(types) {}
  ~CardSession() override { stop_recording(recording_); }

  void start() override {
    recording_ = start_recording(most());
    status_ = libkineto::TraceStatus::RECORDING;
  }

  // torch synchronises the current card before it ends a trace, and the others are drained here. Errors of
  // the streams are raised where the program synchronises.
  void stop() override {
    {
      WithoutGil no_gil;
      drain_used_cards();
    }
    recorded_ = stop_recording(recording_);
    recording_ = 0;
    clock_offset_ = clock_offset();
    status_ = libkineto::TraceStatus::PROCESSING;
    if (recorded_.lost != 0)
      TORCH_WARN("The profile lacks the last ", recorded_.lost, " activities of ", device_name(),
                 ": one trace holds ", most(), " (VDEV_PROFILER_ACTIVITIES). Profile fewer steps at a time.");
  }

  void processTrace(libkineto::ActivityLogger& logger) override { processTrace(logger, nullptr, 0, 0); }

  // Tasks that were launched inside of the window and ended after it are not cut off.
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked,
                    std::int64_t, std::int64_t) override {
    trace_.emplace(std::exchange(recorded_, {}), types_, clock_offset_);
    trace_->log(logger, linked);
  }

  std::vector<std::string> errors() override { return {}; }

  // In the form that Kineto gives GPUs.
  std::string getDeviceProperties() override {
    std::string text;
    for (int index = 0; index < card_count(); ++index) {
      if (!card_used(index)) continue;
      const auto& properties = card(index).properties();
      text += base::text(text.empty() ? "" : ",", "{\"id\": ", index, ", \"name\": \"", properties.name,
                         "\", \"totalGlobalMem\": ", properties.total_memory,
                         ", \"numSms\": ", properties.multi_processor_count, "}");
    }
    return text;
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    if (!trace_ || trace_->cards().empty()) return nullptr;
    return std::make_unique<libkineto::DeviceInfo>(CardTrace::device_info(trace_->cards().front()));
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    return trace_ ? trace_->lanes() : std::vector<libkineto::ResourceInfo>{};
  }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return trace_ ? trace_->take_buffer() : nullptr;
  }

  // vccl.merge_traces compares them: times of two traces are of one clock if the same kernel gave them.
  std::unordered_map<std::string, std::string> getMetadata() override {
    return {{"vccl_clock", base::text('"', base::first_line("/proc/sys/kernel/random/boot_id"), '"')}};
  }

  void pushCorrelationId(std::uint64_t id) override { open_correlation(id); }
  void popCorrelationId() override { close_correlation(); }
  void pushUserCorrelationId(std::uint64_t id) override { open_range(id); }
  void popUserCorrelationId() override { close_range(); }

 private:
  static std::size_t most() { return static_cast<std::size_t>(environment().profiler_activities); }

  const std::set<ActivityType> types_;
  std::uint64_t recording_ = 0;
  Recorded recorded_;
  std::int64_t clock_offset_ = 0;
  std::optional<CardTrace> trace_;
};

class CardProfiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return types_; }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& types,
                                                                 const libkineto::Config&) override {
    for (const auto type : kTypesOfCards)
      if (types.contains(type)) return std::make_unique<CardSession>(types);
    return nullptr;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(std::int64_t, std::int64_t,
                                                                 const std::set<ActivityType>& types,
                                                                 const libkineto::Config& config) override {
    return configure(types, config);
  }

 private:
  const std::string name_ = "vccl";
  const std::set<ActivityType> types_{std::begin(kTypesOfCards), std::end(kTypesOfCards)};
};

// Kineto is told directly. Torch has a registry for the profiler of a device that is not built in, but Kineto
// hears of it only if there is such a device, which there is not in pose.
const Registration profiler_registration([] {
  libkineto::api().registerProfilerFactory([] { return std::make_unique<CardProfiler>(); });
});

}  // namespace
}  // namespace vdev
