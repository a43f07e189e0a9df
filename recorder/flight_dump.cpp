#include "recorder/flight_dump.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "base/text.hpp"
#include "recorder/formats/dump_writers.hpp"

namespace vccl {
namespace {

using records::DumpWriter;

constexpr const char* kFormat = "2.10";  // of torch's dumps
// A dump lists at most so many ranks of all groups together. Only a damaged memory can name more.
constexpr std::size_t kMostRanks = 1 << 20;

struct NameInTorch {
  std::string_view call, torch;
};

// Torch's analyzer takes no other names of operations. Those that are not listed have the same name there.
constexpr std::array kNamesInTorch = {
    NameInTorch{"all_reduce_coalesced", "allreduce_coalesced"},
    NameInTorch{"all_reduce of sparse tensors", "all_reduce"},
    NameInTorch{"all_gather_into_tensor", "_all_gather_base"},
    NameInTorch{"all_gather_coalesced", "ALLGATHER_coalesced"},
    NameInTorch{"reduce_scatter_tensor", "_reduce_scatter_base"},
    NameInTorch{"all_to_all_single", "all_to_all"},
    NameInTorch{"barrier", "all_reduce_barrier"},
};

std::string profiling_name(const FlightEntry& entry, const FlightGroup& group) {
  const auto call = get_text(entry.name);
  const auto found = std::ranges::find(kNamesInTorch, call, &NameInTorch::call);
  auto name = base::text("nccl:", found == kNamesInTorch.end() ? std::string_view(call) : found->torch);
  if (call == "send") name += base::text(' ', group.rank, "->", entry.peer);
  if (call == "recv") name += base::text(' ', group.rank, "<-", entry.peer);
  return name;
}

/// Writes one snapshot.
class Dump {
 public:
  Dump(const FlightSnapshot& snapshot, const DumpOptions& options, DumpWriter& to, bool json)
      : snapshot_(snapshot), options_(options), to_(to), json_(json) {}

  void write() {
    to_.begin_dict();
    field("version", kFormat);
    to_.key("pg_config");
    write_groups();
    field("comm_lib_version", options_.library);
    write_faults();
    to_.key("pg_status");
    write_status();
    if (options_.operations) write_entries();
    to_.key("nccl_comm_state");
    write_communicators();
    to_.end_dict();
  }

 private:
  void field(std::string_view name, std::string_view value) {
    to_.key(name);
    to_.text(value);
  }
  // Without this, a literal would become a bool.
  void field(std::string_view name, const char* value) { field(name, std::string_view(value)); }
  void field(std::string_view name, std::int64_t value) {
    to_.key(name);
    to_.integer(value);
  }
  void field(std::string_view name, std::uint64_t value) { field(name, static_cast<std::int64_t>(value)); }
  void field(std::string_view name, bool value) {
    to_.key(name);
    to_.flag(value);
  }
  // A number that torch's JSON has as a text.
  void status(std::string_view name, std::uint64_t value) {
    if (json_)
      field(name, std::string_view(base::text(value)));
    else
      field(name, value);
  }

  /// Calls `take` for the groups that are open or have entries, each name once. A name belongs to the last
  /// group that has it.
  template <class Take>
  void for_each_group(const Take& take) {
    std::set<std::string> seen;
    for (auto group = snapshot_.groups.rbegin(); group != snapshot_.groups.rend(); ++group) {
      const auto has_entry = [&](const FlightEntry& entry) {
        return entry.group_serial == group->group.serial;
      };
      if (!group->group.open && std::ranges::none_of(snapshot_.entries, has_entry)) continue;
      const auto name = get_text(group->group.name);
      if (seen.insert(name).second) take(name, *group);
    }
  }

  void write_groups() {
    std::size_t left = kMostRanks;
    to_.begin_dict();
    for_each_group([&](const std::string& name, const FlightSnapshot::Group& entry) {
      const auto known = static_cast<std::uint32_t>(std::min<std::size_t>(entry.group.known_ranks(), left));
      left -= known;
      std::string ranks = "[";
      for (std::uint32_t i = 0; i < known; ++i)
        ranks += base::text(i == 0 ? "" : ", ", entry.group.in_job(i));
      to_.key(name);
      to_.begin_dict();
      field("name", name);
      field("desc", description_of(entry.group));
      field("ranks", ranks + ']');
      if (known < entry.group.size) status("ranks_cut_of", entry.group.size);
      to_.end_dict();
    });
    to_.end_dict();
  }

  // Torch's tools do not look at keys that they do not know.
  void write_faults() {
    if (snapshot_.process.faults == 0) return;
    to_.key("vccl_faults");
    to_.begin_dict();
    field("struck", snapshot_.process.faults);
    field("last", get_text(snapshot_.process.last_fault));
    to_.end_dict();
  }

  void write_status() {
    to_.begin_dict();
    for (const auto& [group, progress] : snapshot_.groups) {
      if (!group.open) continue;
      to_.key(base::text(group.serial));
      to_.begin_dict();
      status("last_enqueued_collective", progress.enqueued[0]);
      status("last_started_collective", progress.started[0]);
      status("last_completed_collective", progress.completed[0]);
      to_.end_dict();
    }
    to_.end_dict();
  }

  // Torch has here what NCCL tells of its communicators, all of it as texts.
  void write_communicators() {
    to_.begin_dict();
    for_each_group([&](const std::string& name, const FlightSnapshot::Group& entry) {
      const auto text = [&](std::string_view key, std::uint64_t value) {
        field(key, std::string_view(base::text(value)));
      };
      to_.key(name);
      to_.begin_dict();
      text("rank", entry.group.rank);
      text("size", entry.group.size);
      text("last_enqueued_message", entry.progress.enqueued[1]);
      text("last_started_message", entry.progress.started[1]);
      text("last_completed_message", entry.progress.completed[1]);
      to_.end_dict();
    });
    to_.end_dict();
  }

  void write_entries() {
    const auto shown = [&](const FlightEntry& entry) {
      return !options_.only_active || entry.completed_ns == 0;
    };
    if (json_ && std::ranges::none_of(snapshot_.entries, shown)) return;
    to_.key("entries");
    to_.begin_list();
    for (std::size_t i = 0; i < snapshot_.entries.size(); ++i)
      if (shown(snapshot_.entries[i]))
        write_entry(snapshot_.entries[i], i < snapshot_.stacks.size() ? snapshot_.stacks[i] : "");
    to_.end_list();
  }

  void write_entry(const FlightEntry& entry, const std::string& stack) {
    const FlightGroup& group = snapshot_.group_of(entry).group;
    to_.begin_dict();
    if (!json_ && options_.stacks) write_stack(stack);
    field("record_id", entry.number);
    field("pg_id", group.serial);
    to_.key("process_group");
    to_.pair(get_text(group.name), description_of(group));
    field("collective_seq_id", entry.collective_sequence);
    field("p2p_seq_id", entry.message_sequence);
    field("op_id", entry.operation);
    field("profiling_name", profiling_name(entry, group));
    field("time_created_ns", wall(entry.created_ns));
    if (entry.started_ns != 0 && entry.completed_ns != 0) {
      to_.key("duration_ms");
      to_.real(1e-6 * (static_cast<double>(entry.completed_ns) - static_cast<double>(entry.started_ns)));
    }
    write_tensors("input", entry, 0, entry.listed_inputs);
    write_tensors("output", entry, entry.listed_inputs, entry.listed_outputs);
    if (entry.is(FlightEntry::kSizesCut)) {
      field("inputs_cut_of", std::uint64_t{entry.inputs});
      field("outputs_cut_of", std::uint64_t{entry.outputs});
    }
    field("state", entry.completed_ns != 0 ? "completed" : entry.started_ns != 0 ? "started" : "scheduled");
    time("time_discovered_started_ns", entry.started_ns);
    time("time_discovered_completed_ns", entry.completed_ns);
    field("retired", entry.is(FlightEntry::kRetired));
    field("timeout_ms", entry.timeout_ms);
    field("is_p2p", entry.is(FlightEntry::kMessage));
    field("thread_id", base::text(entry.thread));
    field("thread_name", get_text(entry.thread_name));
    to_.end_dict();
  }

  void write_tensors(const std::string& which, const FlightEntry& entry, std::size_t first,
                     std::size_t count) {
    std::size_t size = 0;
    for (std::size_t i = 0; i < first; ++i) size += entry.dimensions[i];
    to_.key(which + "_sizes");
    to_.begin_list();
    for (std::size_t i = first; i < first + count; ++i) {
      to_.begin_list();
      for (int d = 0; d < entry.dimensions[i]; ++d) to_.integer(entry.sizes[size++]);
      to_.end_list();
    }
    to_.end_list();
    to_.key(which + "_dtypes");
    to_.begin_list();
    for (std::size_t i = first; i < first + count; ++i) {
      const char* name = options_.dtype_name ? options_.dtype_name(entry.dtypes[i]) : nullptr;
      to_.text(name ? name : base::text("dtype ", static_cast<int>(entry.dtypes[i])));
    }
    to_.end_list();
  }

  // Each line of the text is a frame. The last one may have been cut.
  void write_stack(std::string_view stack) {
    to_.key("frames");
    to_.begin_list();
    while (!stack.empty()) {
      auto line = stack.substr(0, stack.find('\n'));
      stack.remove_prefix(std::min(stack.size(), line.size() + 1));
      const auto part = [&] {
        const auto end = std::min(line.find('\t'), line.size());
        auto text = base::valid_text(line.substr(0, end));
        line.remove_prefix(std::min(line.size(), end + 1));
        return text;
      };
      to_.begin_dict();
      field("name", part());
      field("filename", part());
      std::int64_t number = 0;
      for (const char digit : part().substr(0, 9))
        number = digit >= '0' && digit <= '9' ? number * 10 + (digit - '0') : number;
      field("line", number);
      to_.end_dict();
    }
    to_.end_list();
  }

  std::string description_of(const FlightGroup& group) const {
    const auto text = get_text(group.description);
    return text.empty() ? "undefined" : text;
  }

  // Unsigned, because a damaged memory may hold any number.
  std::int64_t wall(std::int64_t steady_ns) const {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(steady_ns) +
                                     static_cast<std::uint64_t>(snapshot_.process.wall_minus_steady_ns));
  }

  void time(std::string_view name, std::int64_t steady_ns) {
    if (steady_ns != 0 || json_) return field(name, steady_ns == 0 ? std::int64_t{0} : wall(steady_ns));
    to_.key(name);
    to_.none();
  }

  const FlightSnapshot& snapshot_;
  const DumpOptions& options_;
  DumpWriter& to_;
  const bool json_;
};

}  // namespace

std::string pickle_of(const FlightSnapshot& snapshot, const DumpOptions& options) {
  records::PickleWriter writer;
  Dump(snapshot, options, writer, false).write();
  return writer.take();
}

std::string json_of(const FlightSnapshot& snapshot, const DumpOptions& options) {
  records::JsonWriter writer;
  Dump(snapshot, options, writer, true).write();
  return writer.take();
}

}  // namespace vccl
