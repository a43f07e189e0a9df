// Turns the activity of the cards into what Kineto, the library behind torch.profiler, writes into a trace.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <libkineto.h>
#include <output_base.h>

#include "csrc_device/runtime/activity.hpp"

namespace vdev {

/// The trace of one recording. Kineto keeps pointers to its activities until the trace is gone, so the buffer
/// with them goes to Kineto at the end.
class CardTrace {
 public:
  using Types = std::set<libkineto::ActivityType>;
  /// `types` are what the program asked for. `clock_offset` is what is added to monotonic times to get
  /// Kineto's, which are nanoseconds since 1970.
  CardTrace(Recorded recorded, Types types, std::int64_t clock_offset);

  /// Hands everything to `logger`. `linked` finds the operator or range of the host with that correlation.
  void log(libkineto::ActivityLogger& logger, const libkineto::getLinkedActivityCallback& linked);

  /// Return what log() has found, for Kineto.
  const std::vector<int>& cards() const { return cards_; }
  static libkineto::DeviceInfo device_info(int card);
  std::vector<libkineto::ResourceInfo> lanes() const;
  std::unique_ptr<libkineto::CpuTraceBuffer> take_buffer() { return std::move(buffer_); }

 private:
  struct Place {
    std::int32_t device, resource;
    auto operator<=>(const Place&) const = default;
  };
  struct Span {
    std::int64_t begin, end;
  };
  using TraceActivity = libkineto::GenericTraceActivity;

  Place place_of(const std::shared_ptr<const Lane>& lane);
  TraceActivity& add(libkineto::ActivityType type, const std::string& name, Place place, Span span);
  void add_launch(const Launch& launch, std::uint32_t flow, const libkineto::ITraceActivity* linked);
  void add_run(const Activity& activity, Place place, std::uint32_t flow,
               const libkineto::ITraceActivity* linked);
  void extend_ranges(const Activity& activity, Place place);
  void add_ranges(const libkineto::getLinkedActivityCallback& linked);

  Recorded recorded_;  // empty once log() has read it
  const Types types_;
  const std::int64_t clock_offset_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
  std::vector<int> cards_;
  std::map<std::shared_ptr<const Lane>, Place> places_;
  std::map<std::pair<Place, std::uint64_t>, Span> ranges_;
};

}  // namespace vdev
