#include <algorithm>

#include "base/text.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/torch/races/state.hpp"

namespace vdev::races {
namespace {

thread_local constinit Lane thread_lane = Lanes::kMain;

LaneText text_of_stream(const Stream& stream) {
  // A communicator's stream, which the program does not know. Its card counts: a synchronisation of the card
  // waits for it, too.
  if (stream.card() < 0 || stream.name().starts_with("vccl "))
    return {LaneText::Kind::operations, base::text("the operations of ", stream.name()), stream.card(),
            stream.id()};
  std::string text = stream.id() == 0
                         ? base::text("the default stream of ", device_name(), ":", stream.card())
                         : base::text("stream ", stream.id(), " of ", device_name(), ":", stream.card());
  return {LaneText::Kind::stream, std::move(text), stream.card(), stream.id()};
}

}  // namespace

Lane Lanes::add(LaneText text) {
  texts_.push_back(std::move(text));
  return static_cast<Lane>(texts_.size() - 1);
}

Lane Lanes::begin_thread(const Point& start, std::string text) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(
      ended_threads_, [&](const auto& ended) { return start && start->includes(ended.first, ended.second); });
  if (found == ended_threads_.end()) return add({LaneText::Kind::host, std::move(text)});
  const Lane lane = found->first;
  ended_threads_.erase(found);
  texts_[lane].text = std::move(text);
  return lane;
}

void Lanes::end_thread(Lane lane, const Point& end) {
  const std::lock_guard lock(mutex_);
  ended_threads_.emplace_back(lane, (*end)[lane]);
}

LaneText Lanes::text_of(Lane lane) {
  const std::lock_guard lock(mutex_);
  return texts_[lane];
}

Lane Lanes::count() {
  const std::lock_guard lock(mutex_);
  return static_cast<Lane>(texts_.size());
}

std::vector<Lane> Lanes::of_card(int card) {
  const std::lock_guard lock(mutex_);
  std::vector<Lane> lanes;
  for (std::size_t i = 0; i < texts_.size(); ++i)
    if (texts_[i].kind != LaneText::Kind::host && texts_[i].card == card)
      lanes.push_back(static_cast<Lane>(i));
  return lanes;
}

LaneText text_of_lane(Lane lane) {
  return Watch::get().lanes.text_of(lane);
}

Lane host_lane() {
  return thread_lane;
}

void begin_thread(const Point& start, const std::string& name) {
  Watch& watch = Watch::get();
  thread_lane = watch.lanes.begin_thread(watch.detector.has_made(start) ? start : nullptr,
                                         base::text("the thread ", name));
  watch.detector.wait(thread_lane, start);
}

Point end_thread() {
  if (thread_lane == Lanes::kMain) return nullptr;
  Watch& watch = Watch::get();
  const Lane lane = std::exchange(thread_lane, Lanes::kMain);
  // The end has a time of its own, so that only those who have waited for it know it.
  watch.detector.access(lane, 0, {});
  const Point end = watch.detector.point(lane);
  watch.lanes.end_thread(lane, end);
  return end;
}

Lane lane_of(const Stream& stream) {
  // A stream that is gone may have had the same address: its accesses then count as ordered.
  return Watch::get().lanes.of(&stream, 0, [&] { return text_of_stream(stream); });
}

Lane lane_of_operations(const void* owner, int number, const std::string& text, int card) {
  return Watch::get().lanes.of(owner, 1 + std::int64_t{number},
                               [&] { return LaneText{LaneText::Kind::operations, text, card}; });
}

}  // namespace vdev::races
