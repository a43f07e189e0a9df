// Gives torch's profilers what they need of a device without a tracer: events at both ends of every range
// (autograd.profiler with use_device="vdev").
#include <memory>

#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/gil.hpp"
#include "csrc_device/torch/registration.hpp"
#include "csrc_device/torch/streams.hpp"

namespace vdev {
namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

class Stubs final : public torch::profiler::impl::ProfilerStubs {
 public:
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event, std::int64_t* cpu_ns) const override {
    const int index = current_card();
    if (device) *device = static_cast<c10::DeviceIndex>(index);
    *event = std::make_shared<Event>(current_stream(index)->record());
    if (cpu_ns) *cpu_ns = c10::getTime();
  }

  /// Returns microseconds, as the CUDA stubs do.
  float elapsed(const ProfilerVoidEventStub* from, const ProfilerVoidEventStub* to) const override {
    WithoutGil no_gil;
    const auto* begin = static_cast<const Event*>(from->get());
    const auto* end = static_cast<const Event*>(to->get());
    // An error of the stream is raised where the stream is synchronised, and not where a time is read.
    begin->wait();
    end->wait();
    return static_cast<float>(end->time_ns() - begin->time_ns()) * 1e-3f;
  }

  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }

  void onEachDevice(std::function<void(int)> visit) const override {
    const int before = current_card();
    for (int index = 0; index < card_count(); ++index) {
      if (!card_used(index)) continue;
      set_current_card(index);
      visit(index);
    }
    set_current_card(before);
  }

  void synchronize() const override {
    if (card_used(current_card())) synchronize_card(current_card());
  }
};

// The stubs are leaked, because profilers may run until the process ends.
const Registration stubs_registration([] { register_profiler_stubs(new Stubs); });

}  // namespace
}  // namespace vdev
