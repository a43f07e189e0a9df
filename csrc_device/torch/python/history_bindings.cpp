// What torch.vdev.memory's history and snapshots are made of, in the form that torch's memory viewer reads.
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/allocator.hpp"

namespace py = pybind11;

namespace vdev {
namespace {

using torch::CapturedTraceback;
using Sites = HistorySettings::Sites;

constexpr const char* kActionNames[AllocatorEvent::kActions] = {
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom", "snapshot"};

CallSite python_site() {
  return CapturedTraceback::gather(true, true, false);
}

CallSite full_site() {
  return CapturedTraceback::gather(true, true, true);
}

Sites sites_named(const std::optional<std::string>& name) {
  if (!name) return Sites::none;
  if (*name == "state") return Sites::blocks;
  if (*name == "alloc") return Sites::allocations;
  TORCH_CHECK(*name == "all", "context is \"", *name, "\"; expected None, \"state\", \"alloc\" or \"all\"");
  return Sites::all;
}

void skip(HistorySettings& settings, const std::vector<std::string>& actions) {
  for (const std::string& action : actions) {
    const auto* const found = std::ranges::find(kActionNames, action);
    TORCH_CHECK(found != std::end(kActionNames), "skip_actions has \"", action,
                "\"; expected alloc, free_requested, free_completed, segment_alloc, segment_free, oom or "
                "snapshot");
    settings.skips[found - std::begin(kActionNames)] = true;
  }
}

void clear_histories() {
  for (int index = 0; index < card_count(); ++index) {
    if (card_used(index)) card(index).allocator().clear_history();
  }
}

void record(const std::optional<std::string>& enabled, const std::optional<std::string>& context,
            const std::string& stacks, std::size_t max_entries, bool clear_history,
            const std::vector<std::string>& skip_actions) {
  HistorySettings settings;
  if (enabled) {
    TORCH_CHECK(*enabled == "state" || *enabled == "all", "enabled is \"", *enabled,
                "\"; expected None, \"state\" or \"all\"");
    TORCH_CHECK(stacks == "python" || stacks == "all", "stacks is \"", stacks,
                "\"; expected \"python\" or \"all\"");
    settings.sites = sites_named(context);
    settings.events = *enabled == "all";
    settings.most_events = max_entries;
    settings.gather = stacks == "all" ? &full_site : &python_site;
    skip(settings, skip_actions);
  }
  record_history(settings);
  if (clear_history || !enabled) {
    const py::gil_scoped_release no_gil;
    clear_histories();
  }
}

/// Turns call sites into lists of frames. Finding names is slow, so this is done for all sites at once, and
/// equal frames share an object.
class Frames {
 public:
  void want(const CallSite& site) {
    if (site && numbers_.emplace(site.get(), sites_.size()).second)
      sites_.push_back(static_cast<CapturedTraceback*>(site.get()));
  }
  void find() {
    {
      const py::gil_scoped_release no_gil;  // symbolize() takes the GIL where it needs it
      found_ = torch::symbolize(sites_);
    }
    for (const auto& frame : found_.all_frames) {
      py::dict entry;
      entry["filename"] = frame.filename;
      entry["line"] = frame.lineno;
      entry["name"] = frame.funcname;
      frames_.push_back(std::move(entry));
    }
  }
  py::list of(const CallSite& site) const {
    py::list result;
    if (!site) return result;
    for (const auto index : found_.tracebacks.at(numbers_.at(site.get()))) result.append(frames_.at(index));
    return result;
  }

 private:
  std::unordered_map<const void*, std::size_t> numbers_;
  std::vector<CapturedTraceback*> sites_;
  torch::SymbolizedTracebacks found_;
  std::vector<py::dict> frames_;
};

// The program's blocks are of pool (0, 0), as on CUDA, and those of a graph of (0, its number). Temporary
// memory of kernels has a pool of its own here.
py::tuple pool_id(PoolNumber pool) {
  return py::make_tuple(0, pool);
}

const char* name_of(BlockInfo::State state) {
  switch (state) {
    case BlockInfo::State::allocated:
      return "active_allocated";
    case BlockInfo::State::awaiting_free:
      return "active_pending_free";
    default:
      return "inactive";
  }
}

py::dict to_python(const SegmentInfo& segment, int index, const Frames& frames) {
  py::list blocks;
  std::size_t allocated = 0, active = 0, requested = 0;
  for (const BlockInfo& block : segment.blocks) {
    if (block.state == BlockInfo::State::allocated) allocated += block.size;
    if (block.state != BlockInfo::State::inactive) {
      active += block.size;
      requested += block.requested;
    }
    py::dict entry;
    entry["address"] = block.address;
    entry["size"] = block.size;
    entry["requested_size"] = block.requested;
    entry["state"] = name_of(block.state);
    entry["frames"] = frames.of(block.site);
    blocks.append(std::move(entry));
  }
  py::dict result;
  result["device"] = index;
  result["address"] = segment.address;
  result["total_size"] = segment.size;
  result["allocated_size"] = allocated;
  result["active_size"] = active;
  result["requested_size"] = requested;
  result["stream"] = segment.stream;
  result["segment_type"] = segment.small ? "small" : "large";
  result["segment_pool_id"] = pool_id(segment.pool);
  result["is_expandable"] = false;
  result["frames"] = frames.of(segment.site);
  result["blocks"] = std::move(blocks);
  return result;
}

py::dict to_python(const AllocatorEvent& event, const Frames& frames) {
  py::dict result;
  result["action"] = kActionNames[static_cast<int>(event.action)];
  result[event.action == AllocatorEvent::Action::out_of_memory ? "device_free" : "addr"] = event.address;
  result["size"] = event.size;
  result["stream"] = event.stream;
  result["pool_id"] = pool_id(event.pool);
  result["time_us"] = event.time;
  result["user_metadata"] = event.label ? *event.label : std::string();
  result["frames"] = frames.of(event.site);
  return result;
}

/// Returns the segments of all cards, those of `pool` alone if there is one, and with `traces` the events.
py::dict snapshot(const std::optional<PoolNumber>& pool, bool traces) {
  std::vector<AllocatorSnapshot> cards(static_cast<std::size_t>(card_count()));
  {
    const py::gil_scoped_release no_gil;
    for (int index = 0; index < card_count(); ++index) {
      if (card_used(index)) cards[static_cast<std::size_t>(index)] = card(index).allocator().snapshot(traces);
    }
  }
  Frames frames;
  for (auto& of_card : cards) {
    if (pool) std::erase_if(of_card.segments, [&](const auto& segment) { return segment.pool != *pool; });
    if (!traces) of_card.events.clear();
    for (const SegmentInfo& segment : of_card.segments) {
      frames.want(segment.site);
      for (const BlockInfo& block : segment.blocks) frames.want(block.site);
    }
    for (const AllocatorEvent& event : of_card.events) frames.want(event.site);
  }
  frames.find();
  py::list segments, device_traces;
  for (std::size_t index = 0; index < cards.size(); ++index) {
    for (const SegmentInfo& segment : cards[index].segments)
      segments.append(to_python(segment, static_cast<int>(index), frames));
    py::list events;
    for (const AllocatorEvent& event : cards[index].events) events.append(to_python(event, frames));
    device_traces.append(std::move(events));
  }
  py::dict result;
  result["segments"] = std::move(segments);
  result["device_traces"] = std::move(device_traces);
  return result;
}

std::optional<py::list> allocation_traceback(std::uintptr_t address) {
  CallSite site;
  for (int index = 0; index < card_count() && !site; ++index) {
    if (card_used(index)) site = card(index).allocator().site_of(reinterpret_cast<const std::byte*>(address));
  }
  if (!site) return std::nullopt;
  Frames frames;
  frames.want(site);
  frames.find();
  return frames.of(site);
}

void attach(const py::function& observer) {
  // The observer lives as long as the process, so no thread drops it without the GIL.
  attach_out_of_memory_observer([function = observer.inc_ref().ptr()](int card, std::size_t asked,
                                                                      std::size_t total, std::size_t free) {
    const py::gil_scoped_acquire gil;
    py::reinterpret_borrow<py::function>(function)(card, asked, total, free);
  });
}

}  // namespace
}  // namespace vdev

void init_history_bindings(py::module_& m) {
  m.def("_record_memory_history", &vdev::record, py::arg("enabled"), py::arg("context"), py::arg("stacks"),
        py::arg("max_entries"), py::arg("clear_history"), py::arg("skip_actions"));
  m.def("_is_memory_history_recorded", &vdev::AllocatorHistory::recording);
  m.def("_memory_snapshot", &vdev::snapshot, py::arg("pool"), py::arg("traces"));
  m.def("_allocation_traceback", &vdev::allocation_traceback, py::arg("address"));
  m.def("_attach_out_of_memory_observer", &vdev::attach, py::arg("observer"));
  m.def("_set_memory_metadata", &vdev::label_history, py::arg("metadata"));
  m.def("_get_memory_metadata", &vdev::history_label);
}
