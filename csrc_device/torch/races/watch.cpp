#include "csrc_device/torch/races/watch.hpp"

#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/torch/races/processes.hpp"
#include "csrc_device/torch/races/raw_views.hpp"
#include "csrc_device/torch/races/state.hpp"

namespace vdev::races {
namespace {

/// Set while the calling thread runs a function that was given to a stream.
struct Acting {
  Lane lane;
  Point before;
};
thread_local const Acting* acting = nullptr;

struct Current {
  std::atomic<Watch*> watch{new Watch};
};

Current& current() {
  static base::OnePerProcess<Current> one;
  return one.get([](Current& own, const Current& parents) {
    const Watch* before = parents.watch.load(std::memory_order_acquire);
    Watch* watch = own.watch.load(std::memory_order_relaxed);
    watch->options = before->options;
    watch->report = before->report;
  });
}

void report_races(Watch& watch, const std::vector<sanitizer::Race>& races,
                  const std::vector<Touched>& touched, Report::Kind kind) {
  for (const auto& race : races) {
    const Touched& its = touched[race.number];
    watch.report({.kind = kind,
                  .race = race,
                  .first = text_of_site(race.first.site),
                  .second = text_of_site(race.second.site),
                  .allocated = text_of_site(race.allocated),
                  .freed = text_of_site(race.freed),
                  .first_lane = text_of_lane(race.first.lane),
                  .second_lane = text_of_lane(race.second.lane),
                  .address = its.access.memory.begin(),
                  .shape = its.shape,
                  .dtype = its.dtype});
  }
}

std::vector<Access> accesses_of(const std::vector<Touched>& touched) {
  std::vector<Access> accesses;
  accesses.reserve(touched.size());
  for (std::size_t i = 0; i < touched.size(); ++i) {
    accesses.push_back(touched[i].access);
    accesses.back().number = static_cast<std::uint32_t>(i);
    if (touched[i].raw != nullptr) [[unlikely]]
      accesses.back().block = block_of_raw(touched[i]);
  }
  return accesses;
}

void note_order(Watch& watch, sanitizer::Detector& detector, Lane lane, Site site,
                const std::vector<Touched>& touched) {
  report_races(watch, detector.access(lane, site, accesses_of(touched)), touched, Report::Kind::race);
  if (shares_memory() && &detector == &watch.detector) [[unlikely]]
    note_shared(lane, site, touched, detector.point(lane));
}

void note(Watch& watch, sanitizer::Detector& detector, Lane lane, Site site,
          const std::vector<Touched>& touched) {
  report_races(watch, uses_of_freed_memory(watch, lane, site, touched), touched, Report::Kind::gone);
  if (watch.options.unwritten)
    report_races(watch, detector.unwritten(lane, site, accesses_of(touched)), touched,
                 Report::Kind::unwritten);
  note_order(watch, detector, lane, site, touched);
}

void report_useless(Watch& watch, const char* call, std::int64_t waited_ns) {
  Report report{.kind = Report::Kind::useless, .second = text_of_site(site_of(call)), .waited_ns = waited_ns};
  report.second_lane = text_of_lane(host_lane());
  watch.report(report);
}

}  // namespace

Touched::Touched(const at::Tensor& dense, bool writes)
    : access{dense.storage().data(),
             {dense.const_data_ptr(),
              static_cast<std::size_t>(dense.element_size()),
              {dense.sizes().data(), dense.sizes().size()},
              {dense.strides().data(), dense.strides().size()}},
             writes},
      shape(dense.sizes().vec()),
      dtype(c10::toString(dense.scalar_type())),
      raw(raw_view_of(dense.storage())) {}

Watch& Watch::get() {
  return *current().watch.load(std::memory_order_acquire);
}

std::shared_ptr<sanitizer::Detector> Watch::of(const Stream& stream) {
  const auto capture = stream.queue()->capture();
  if (!capture) [[likely]]
    return {std::shared_ptr<void>(), &detector};
  const std::lock_guard lock(mutex);
  auto& its = captures[capture.get()];
  if (!its) its = std::make_shared<sanitizer::Detector>();
  return its;
}

// The release pairs with the acquire of Watch::get(): whoever finds the new one finds it complete.
void start(const Options& options, std::function<void(const Report&)> report) {
  auto* watch = new Watch;
  watch->options = options;
  watch->report = std::move(report);
  current().watch.store(watch, std::memory_order_release);
  sharing.store(false, std::memory_order_relaxed);
  watching.store(true, std::memory_order_relaxed);
}

void stop() {
  watching.store(false, std::memory_order_relaxed);
}

Point host_point() {
  return Watch::get().detector.point(host_lane());
}

void host_waits_for(const Point& point) {
  Watch::get().detector.wait(host_lane(), point);
}

Point point_of(const Stream& stream) {
  Watch& watch = Watch::get();
  const auto detector = watch.of(stream);
  const Lane lane = lane_of(stream);
  detector->wait(lane, host_lane());
  return detector->point(lane);
}

void wait(const Stream& stream, const Point& point) {
  Watch::get().of(stream)->wait(lane_of(stream), point);
}

void wait(Lane lane, const Point& point) {
  Watch::get().detector.wait(lane, point);
}

void wait(const Stream& stream, const Stream& other) {
  wait(stream, point_of(other));
}

void host_waits_for(const Point& point, std::int64_t waited_ns, const char* call) {
  Watch& watch = Watch::get();
  if (!watch.detector.wait(host_lane(), point) && watch.options.useless && call != nullptr)
    report_useless(watch, call, waited_ns);
}

void host_waits_for(const Stream& stream, std::int64_t waited_ns, const char* call) {
  host_waits_for(Watch::get().detector.point(lane_of(stream)), waited_ns, call);
}

void host_waits_for_card(int card, std::int64_t waited_ns) {
  Watch& watch = Watch::get();
  bool any = false;
  for (const Lane lane : watch.lanes.of_card(card)) any |= watch.detector.wait(host_lane(), lane);
  if (!any && watch.options.useless) report_useless(watch, "synchronize", waited_ns);
}

void access(const Stream& stream, Site site, const std::vector<Touched>& touched) {
  if (touched.empty()) return;
  Watch& watch = Watch::get();
  const auto detector = watch.of(stream);
  const Lane lane = lane_of(stream);
  detector->wait(lane, host_lane());
  note(watch, *detector, lane, site, touched);
}

void moved(const Stream& stream, Site site, const Touched& from, const Touched& to) {
  Watch& watch = Watch::get();
  const auto detector = watch.of(stream);
  const Lane lane = lane_of(stream);
  detector->wait(lane, host_lane());
  std::vector<Touched> touched{from};
  if (detector->unwritten(lane, site, accesses_of(touched)).empty()) touched.push_back(to);
  note_order(watch, *detector, lane, site, touched);
}

Point access(Lane lane, const Stream* behind, Site site, const std::vector<Touched>& touched) {
  Watch& watch = Watch::get();
  watch.detector.wait(lane, behind != nullptr ? point_of(*behind) : host_point());
  note(watch, watch.detector, lane, site, touched);
  return watch.detector.point(lane);
}

void host_access(Site site, const std::vector<Touched>& touched) {
  Watch& watch = Watch::get();
  if (acting != nullptr && !watch.detector.has_made(acting->before)) return;  // given before the start
  if (acting == nullptr) return note(watch, watch.detector, host_lane(), site, touched);
  report_races(watch, watch.detector.access(acting->lane, acting->before, site, accesses_of(touched)),
               touched, Report::Kind::race);
  if (shares_memory()) [[unlikely]]
    note_shared(acting->lane, site, touched, acting->before);
}

OnStream::OnStream(const Stream& stream) : lane_(lane_of(stream)) {
  // The function is an action of the stream, with a time of its own.
  Watch& watch = Watch::get();
  watch.detector.wait(lane_, host_lane());
  watch.detector.access(lane_, 0, {});
  before_ = watch.detector.point(lane_);
}

bool acts_for_stream() noexcept {
  return acting != nullptr;
}

void OnStream::run(const std::function<void()>& function) const {
  const Acting here{lane_, before_};
  const Acting* outer = std::exchange(acting, &here);
  try {
    function();
  } catch (...) {
    acting = outer;
    throw;
  }
  acting = outer;
}

void keep_for(const void* block, const Stream& stream) {
  Watch::get().of(stream)->keep_for(block, lane_of(stream));
}

void hold(const Point& end, const std::vector<Touched>& touched) {
  for (const Touched& each : touched)
    if (each.raw == nullptr) Watch::get().detector.hold(each.access.block, end);
}

void let_go(const Point& end, const void* block) {
  Watch::get().detector.let_go(block, end);
}

void freed(const void* block) {
  Watch& watch = Watch::get();
  if (watch.detector.freed(block)) watch.detector.freed_at(block, site_of("the release"));
  if (shares_memory()) [[unlikely]]
    forget_shared(block);
  const std::lock_guard lock(watch.mutex);
  for (const auto& [capture, detector] : watch.captures) detector->freed(block);
}

void released() {
  Watch::get().detector.released();
}

GraphAccesses end_capture(const Capture& capture) {
  Watch& watch = Watch::get();
  const std::lock_guard lock(watch.mutex);
  const auto found = watch.captures.find(&capture);
  if (found == watch.captures.end()) return nullptr;
  auto accesses = std::make_shared<const std::vector<Access>>(found->second->remembered());
  watch.captures.erase(found);
  return accesses;
}

void replay(const Stream& stream, const GraphAccesses& accesses) {
  if (!accesses) return;
  Watch& watch = Watch::get();
  const Site site = site_of("replay of a graph");
  const Lane lane = lane_of(stream);
  watch.detector.wait(lane, host_lane());
  std::vector<Touched> touched;
  for (const Access& access : *accesses) touched.emplace_back(access);
  note(watch, watch.detector, lane, site, touched);
}

}  // namespace vdev::races
