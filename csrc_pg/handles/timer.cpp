// The clock of DDP's logging (get_ddp_logging_data) for models on cards.
#include <array>

#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/gil.hpp"
#include "csrc_device/torch/registration.hpp"

namespace c10d {
namespace {

constexpr int kSampled = 5;  // Timer::Event's names

/// Records the reducer's moments on the current stream. What counts is when the card came to them, not when
/// the host enqueued them.
class VdevTimer final : public Timer {
 public:
  explicit VdevTimer(c10::Device device) : card_(device.index()) {}

  void record(Event event) override {
    getTimeRef(event) = current_time_in_nanos();
    at(event) = vdev::current_stream(card_)->record();
  }

  std::optional<std::int64_t> measureDifference(Event start, Event end) override {
    const auto first = at(start), last = at(end);
    if (!first.recorded() || !last.recorded()) return std::nullopt;
    vdev::WithoutGil without_gil;
    first.wait();
    last.wait();
    const auto nanoseconds = last.time_ns() - first.time_ns();
    // The start is of this iteration and the end of the one before: this iteration's end has not been
    // recorded.
    if (nanoseconds < 0) return std::nullopt;
    return nanoseconds;
  }

 private:
  vdev::Event& at(Event event) { return events_.at(static_cast<std::size_t>(event)); }

  const int card_;
  std::array<vdev::Event, kSampled> events_;
};

const vdev::Registration timer_registration([] {
  // The registry would end the process for a second timer of one device type.
  TORCH_CHECK(!TimerRegistry()->Has(vdev::device_type()), "torch has a timer of DDP for the device ",
              vdev::device_type(), " already, because another library has registered that device.");
  TimerRegistry()->Register(vdev::device_type(), RegistererTimerRegistry::DefaultCreator<VdevTimer>);
});

}  // namespace
}  // namespace c10d
