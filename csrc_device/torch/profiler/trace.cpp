#include "csrc_device/torch/profiler/trace.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/torch/torch_version.hpp"

namespace vdev {
namespace {

using libkineto::ActivityType;
using libkineto::GenericTraceActivity;
using libkineto::ITraceActivity;

// What has no stream of a card gets a number that no stream and no thread has. What has no card either is
// shown beside the process's threads.
constexpr std::int32_t kFirstOwnLane = 10'000'000;

// Kineto knows the calls that launch work by a type for each kind of device.
ActivityType type_of_launch() {
  return pose() == Pose::cuda ? ActivityType::CUDA_RUNTIME : ActivityType::PRIVATEUSE1_RUNTIME;
}

// What runs on a stream of the host is work of the host, and must not count as time of a card.
ActivityType type_of_run(const Launch& launch) {
  if (launch.lane->card < 0)
    return pose() == Pose::cuda ? ActivityType::CUDA_DRIVER : ActivityType::PRIVATEUSE1_DRIVER;
  return launch.label.kind == ActivityKind::kCopy ? ActivityType::GPU_MEMCPY
                                                  : ActivityType::CONCURRENT_KERNEL;
}

std::string name_of_launch(ActivityKind kind) {
  const char* call = "LaunchKernel";
  if (kind == ActivityKind::kCopy) call = "MemcpyAsync";
  if (kind == ActivityKind::kGraph) call = "GraphLaunch";
  return base::text(device_name(), call);
}

// Kineto writes texts into JSON as they are.
std::string clean(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' '; }, '\'');
  return text;
}

// A task without a name of its own has that of the operator that launched it, in the form of label_of().
std::string name_of_run(const Launch& launch, const ITraceActivity* linked) {
  if (!launch.label.name.empty()) return clean(launch.label.name);
  if (linked == nullptr) return launch.label.kind == ActivityKind::kOperator ? "operator" : "task";
  const std::string name = linked->name();
  const auto colons = name.find("::");
  return colons == std::string::npos ? name
                                     : base::text(name.substr(0, colons), ".", name.substr(colons + 2));
}

void add_gigabytes_per_second(GenericTraceActivity& run, const char* key, double bytes) {
  const auto nanoseconds = static_cast<double>(run.duration());
  if (nanoseconds > 0) run.addMetadata(key, bytes / nanoseconds);
}

// Adds what a collective is, under Kineto's names. Kineto adds the same by itself where it knows the record
// that the process group has made of the call.
void add_collective(GenericTraceActivity& run, const Launch& launch, const ITraceActivity* linked) {
  const auto& what = *launch.label.communication;
  const auto bytes = static_cast<double>(launch.label.bytes);
  run.addMetadata("Seq", what.sequence);
  run.addMetadata("Rank", what.rank);
  add_gigabytes_per_second(run, "algorithm bandwidth (GB/s)", bytes);
  add_gigabytes_per_second(run, "bus bandwidth (GB/s)", bytes * what.bus_factor);
  if (linked != nullptr && linked->name() == "record_param_comms" &&
      run.type() == ActivityType::CONCURRENT_KERNEL)
    return;
  run.addMetadataQuoted("Collective name", clean(what.collective));
  run.addMetadata("In msg nelems", what.elements_in);
  run.addMetadata("Out msg nelems", what.elements_out);
  run.addMetadata("Group size", what.size);
  run.addMetadataQuoted("dtype", clean(what.dtype));
  run.addMetadataQuoted("Process Group Name", clean(what.group));
  run.addMetadataQuoted("Process Group Description", clean(what.description));
}

}  // namespace

CardTrace::CardTrace(Recorded recorded, Types types, std::int64_t clock_offset)
    : recorded_(std::move(recorded)), types_(std::move(types)), clock_offset_(clock_offset) {
  buffer_->span = libkineto::TraceSpan(0, 0, base::text(device_name(), " activity"));
  buffer_->gpuOpCount = 0;
}

void CardTrace::log(libkineto::ActivityLogger& logger, const libkineto::getLinkedActivityCallback& linked) {
  const auto find = [&](std::uint64_t correlation) -> const ITraceActivity* {
    return correlation != 0 && linked ? linked(static_cast<std::int32_t>(correlation)) : nullptr;
  };
  std::uint32_t flow = 0;
  for (const auto& activity : recorded_.activities) {
    const Launch& launch = *activity.launch;
    if (!types_.contains(type_of_run(launch))) continue;
    const auto* op = find(launch.label.correlation);
    // Torch passes many operators on to other forms of theirs, whose ranges have the same name. Their sum
    // would have the time several times, so it is credited to the outermost. The exception is a range with
    // nothing but another one of its name in it: torch makes one of the two, with the time of the inner one.
    for (const auto correlation : launch.outer_correlations) {
      const auto* outer = find(correlation);
      if (op == nullptr || outer == nullptr || outer->name() != op->name()) break;
      op = outer;
    }
    const auto place = place_of(launch.lane);
    const bool has_arrow = !launch.is_part && types_.contains(type_of_launch());
    ++flow;
    if (has_arrow) add_launch(launch, flow, op);
    add_run(activity, place, has_arrow ? flow : 0, op);
    if (launch.lane->card >= 0) extend_ranges(activity, place);
  }
  recorded_ = {};
  if (types_.contains(ActivityType::GPU_USER_ANNOTATION) && linked) add_ranges(linked);
  for (const auto& activity : buffer_->activities) logger.handleActivity(*activity);
  // Kineto asks for one card (getDeviceInfo), and takes the others here.
  for (std::size_t i = 1; i < cards_.size(); ++i)
    logger.handleDeviceInfo(device_info(cards_[i]), buffer_->span.startTime);
}

CardTrace::Place CardTrace::place_of(const std::shared_ptr<const Lane>& lane) {
  const auto known = places_.find(lane);
  if (known != places_.end()) return known->second;
  const bool on_card = lane->card >= 0;
  Place place{on_card ? lane->card : libkineto::processId(), static_cast<std::int32_t>(lane->stream)};
  if (!on_card || lane->stream == Lane::kNoStream)
    place.resource = kFirstOwnLane + static_cast<std::int32_t>(places_.size());
  if (on_card && std::ranges::find(cards_, lane->card) == cards_.end()) cards_.push_back(lane->card);
  places_.emplace(lane, place);
  return place;
}

GenericTraceActivity& CardTrace::add(ActivityType type, const std::string& name, Place place, Span span) {
  buffer_->emplace_activity(buffer_->span, type, name);
  auto& added = *buffer_->activities.back();
  added.device = place.device;
  added.resource = place.resource;
  added.startTime = span.begin + clock_offset_;
  added.endTime = span.end + clock_offset_;
  return added;
}

void CardTrace::add_launch(const Launch& launch, std::uint32_t flow, const ITraceActivity* linked) {
  auto& call = add(type_of_launch(), name_of_launch(launch.label.kind),
                   {libkineto::processId(), launch.thread}, {launch.begin, launch.end});
  call.threadId = launch.thread;
  call.linked = linked;
  // A number of its own would be taken for that of an operator, unless an operator is linked.
  call.id = linked != nullptr ? static_cast<std::int32_t>(flow) : 0;
  call.flow.id = flow;
  call.flow.type = libkineto::kLinkAsyncCpuGpu;
  call.flow.start = 1;
  call.addMetadata("correlation", flow);
}

void CardTrace::add_run(const Activity& activity, Place place, std::uint32_t flow,
                        const ITraceActivity* linked) {
  const Launch& launch = *activity.launch;
  const bool on_card = launch.lane->card >= 0;
  auto& run = add(type_of_run(launch), name_of_run(launch, linked), place, {activity.begin, activity.end});
  // Kineto would take a linked activity of the host for a part of the operator, on the operator's thread.
  // The parts of a run are in its time already, so they are not linked, either.
  if (on_card && !launch.is_part) run.linked = linked;
  if (flow != 0) {
    run.id = run.linked != nullptr ? static_cast<std::int32_t>(flow) : 0;
    run.flow.id = flow;
    run.flow.type = libkineto::kLinkAsyncCpuGpu;
    run.flow.start = 0;
    run.addMetadata("correlation", flow);
  }
  if (on_card) {
    run.addMetadata("device", launch.lane->card);
    run.addMetadata("stream", place.resource);
  }
  if (launch.label.bytes != 0 || launch.label.communication) run.addMetadata("bytes", launch.label.bytes);
  if (launch.label.kind == ActivityKind::kCopy)
    add_gigabytes_per_second(run, "memory bandwidth (GB/s)", static_cast<double>(launch.label.bytes));
  if (launch.label.communication) add_collective(run, launch, run.linked);
}

// A range of the program, such as ProfilerStep#3, covers on each lane what was launched inside of it.
void CardTrace::extend_ranges(const Activity& activity, Place place) {
  for (auto* range = activity.launch->range.get(); range != nullptr; range = range->outer.get()) {
    const Span run{activity.begin, activity.end};
    auto& span = ranges_.try_emplace({place, range->id}, run).first->second;
    span.begin = std::min(span.begin, run.begin);
    span.end = std::max(span.end, run.end);
  }
}

void CardTrace::add_ranges(const libkineto::getLinkedActivityCallback& linked) {
  for (const auto& [key, span] : ranges_) {
    const auto id = static_cast<std::int32_t>(key.second);
    const auto* range = linked(id);
    if (range == nullptr || range->type() != ActivityType::USER_ANNOTATION) continue;
    add(ActivityType::GPU_USER_ANNOTATION, range->name(), key.first, span).id = id;
  }
}

libkineto::DeviceInfo CardTrace::device_info(int card) {
  return {card, libkineto::kExceedMaxPid + card, base::text(device_name(), ":", card), "virtual card"};
}

std::vector<libkineto::ResourceInfo> CardTrace::lanes() const {
  std::vector<libkineto::ResourceInfo> result;
  for (const auto& [lane, place] : places_) {
    // A stream that was given no name has its number in the one that it got.
    const bool named = !lane->name.ends_with(base::text("/s", lane->stream));
    std::string name = lane->name;
    if (lane->card >= 0 && lane->stream != Lane::kNoStream)
      name = base::text("stream ", lane->stream, named ? ": " : "", named ? lane->name : "");
    result.push_back(torch_version::trace_lane<libkineto::ResourceInfo>(place.device, place.resource,
                                                                        clean(std::move(name))));
  }
  return result;
}

}  // namespace vdev
