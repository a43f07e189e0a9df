#include "recorder/spool/lines.hpp"

#include <array>
#include <cstddef>
#include <cstdio>
#include <string_view>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "recorder/formats/dump_writers.hpp"

namespace vccl::records {
namespace {

constexpr std::array<std::string_view, 10> kReductions = {"",    "SUM",  "AVG", "PRODUCT", "MIN",
                                                          "MAX", "BAND", "BOR", "BXOR",    "PREMUL_SUM"};

/// A line that is a dict.
class Line {
 public:
  Line() { json_.begin_dict(); }
  JsonWriter& at(std::string_view key) {
    json_.key(key);
    return json_;
  }
  void text(std::string_view key, std::string_view value) {
    if (!value.empty()) at(key).text(value);
  }
  void number(std::string_view key, std::int64_t value) { at(key).integer(value); }
  void flag(std::string_view key, bool value) {
    if (value) at(key).flag(true);
  }
  void numbers(std::string_view key, const std::vector<std::int64_t>& values) {
    if (values.empty()) return;
    auto& list = at(key);
    list.begin_list();
    for (const auto value : values) list.integer(value);
    list.end_list();
  }
  std::string take() {
    json_.end_dict();
    return json_.take() + '\n';
  }

 private:
  JsonWriter json_;
};

std::string dtype_text(std::uint8_t dtype, const SpoolSettings& settings) {
  const char* name = settings.dtype_name ? settings.dtype_name(dtype) : nullptr;
  return name ? name : base::text("dtype ", static_cast<int>(dtype));
}

std::vector<FlightDetails::Tensor> listed(const FlightEntry& entry, std::size_t first, std::size_t count) {
  std::size_t size = 0;
  for (std::size_t i = 0; i < first; ++i) size += entry.dimensions[i];
  std::vector<FlightDetails::Tensor> tensors;
  for (std::size_t i = first; i < first + count; ++i) {
    const auto* begin = entry.sizes.data() + size;
    tensors.push_back({entry.dtypes[i], {begin, begin + entry.dimensions[i]}});
    size += entry.dimensions[i];
  }
  return tensors;
}

void add_tensors(Line& line, std::string_view key, const std::vector<FlightDetails::Tensor>& tensors,
                 const SpoolSettings& settings) {
  if (tensors.empty()) return;
  auto& list = line.at(key);
  list.begin_list();
  for (const auto& tensor : tensors) {
    list.begin_list();
    list.text(dtype_text(tensor.dtype, settings));
    list.begin_list();
    for (const auto size : tensor.shape) list.integer(size);
    list.end_list();
    list.end_list();
  }
  list.end_list();
}

/// A time of the file, or "null" for one that is not known.
std::string time_text(std::int64_t steady_ns, std::int64_t start_ns) {
  return steady_ns == 0 ? "null" : base::text(steady_ns - start_ns);
}

std::string hash_text(std::uint64_t hash) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "\"%016llx\"", static_cast<unsigned long long>(hash));
  return digits;
}

}  // namespace

std::string header_line(const FlightProcess& process, const SpoolSettings& settings, std::int64_t start_ns) {
  Line line;
  line.number("vccl_record", kRecordVersion);
  line.text("library", settings.library);
  line.text("job", get_text(process.job));
  line.number("rank", process.rank);
  line.number("size", process.size);
  line.number("pid", process.pid);
  line.text("host", get_text(process.host));
  line.text("backend", get_text(process.backend));
  line.text("program", get_text(process.program));
  line.number("steady_ns", start_ns);
  line.number("wall_ns", start_ns + process.wall_minus_steady_ns);
  return line.take();
}

std::string group_line(const FlightGroup& group, std::int64_t start_ns) {
  Line line;
  line.number("group", static_cast<std::int64_t>(group.serial));
  line.text("name", get_text(group.name));
  line.text("description", get_text(group.description));
  line.number("rank", group.rank);
  line.number("size", group.size);
  line.number("opened_ns", group.opened_ns - start_ns);
  std::vector<std::int64_t> ranks;
  for (std::uint32_t i = 0; i < group.known_ranks(); ++i) ranks.push_back(group.in_job(i));
  line.numbers("ranks", ranks);
  return line.take();
}

std::string closed_line(std::uint64_t serial) {
  return base::text("[\"closed\",", serial, "]\n");
}

std::string call_line(std::uint64_t call, const FlightEntry& entry,
                      const std::optional<FlightDetails>& details, const SpoolSettings& settings) {
  Line line;
  line.number("call", static_cast<std::int64_t>(call));
  line.text("name", get_text(entry.name));
  line.number("group", entry.group_serial);
  line.number("card", entry.card);
  const bool has_all = details && !(details->inputs.empty() && details->outputs.empty());
  add_tensors(line, "inputs", has_all ? details->inputs : listed(entry, 0, entry.listed_inputs), settings);
  add_tensors(line, "outputs",
              has_all ? details->outputs : listed(entry, entry.listed_inputs, entry.listed_outputs),
              settings);
  line.flag("cut", entry.is(FlightEntry::kSizesCut) && !has_all);
  if (details) {
    line.numbers("input_splits", details->input_splits);
    line.numbers("output_splits", details->output_splits);
  }
  line.flag("splits_lost", entry.details != 0 && !details);
  if (entry.root >= 0) line.number("root", entry.root);
  const auto reduction = static_cast<std::size_t>(entry.reduction);
  if (reduction < kReductions.size()) line.text("reduction", kReductions[reduction]);
  if (entry.reduction == FlightReduction::premul_sum) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.17g", entry.factor);
    line.text("factor", digits);
  }
  line.flag("message", entry.is(FlightEntry::kMessage));
  if (entry.is(FlightEntry::kMessage) && !entry.is(FlightEntry::kBatch)) {
    line.flag("sends", entry.is(FlightEntry::kSends));
    line.flag("any_source", entry.is(FlightEntry::kAnySource));
    line.number("peer", entry.peer);
    line.number("tag", entry.tag);
  }
  line.flag("async", entry.is(FlightEntry::kAsync));
  line.flag("in_batch", entry.is(FlightEntry::kInBatch));
  if (entry.is(FlightEntry::kBatch)) line.number("batch", entry.calls);
  line.flag("graph", entry.is(FlightEntry::kReplayed));
  line.number("timeout_ms", entry.timeout_ms);
  line.text("thread", get_text(entry.thread_name));
  line.number("thread_number", entry.thread_number);
  return line.take();
}

std::string operation_line(const FlightEntry& entry, std::uint64_t call, std::int64_t start_ns) {
  const auto sequence = entry.is(FlightEntry::kMessage) ? entry.message_sequence : entry.collective_sequence;
  auto line = base::text('[', entry.number, ',', call, ',', sequence, ',', entry.created_ns - start_ns);
  if (entry.is(FlightEntry::kRetired)) {
    line +=
        base::text(',', time_text(entry.started_ns, start_ns), ',', time_text(entry.completed_ns, start_ns));
    if (entry.is(FlightEntry::kHashed))
      line += base::text(',', hash_text(entry.input_hash), ',', hash_text(entry.output_hash));
  }
  return line + "]\n";
}

std::string end_line(const FlightEntry& entry, std::int64_t start_ns) {
  auto line = base::text("[\"end\",", entry.number, ',', time_text(entry.started_ns, start_ns), ',',
                         time_text(entry.completed_ns, start_ns), ',', entry.peer);
  if (entry.is(FlightEntry::kHashed))
    line += base::text(',', hash_text(entry.input_hash), ',', hash_text(entry.output_hash));
  return line + "]\n";
}

std::string unknown_end_line(std::uint64_t number) {
  return base::text("[\"end\",", number, "]\n");
}

std::string lost_line(std::uint64_t lost, std::uint64_t next) {
  return base::text("[\"lost\",", lost, ',', next, "]\n");
}

std::string finished_line(std::uint64_t unrecorded, std::int64_t start_ns) {
  return base::text("[\"finished\",", unrecorded, ',', base::monotonic_ns() - start_ns, "]\n");
}

std::string common_part(FlightEntry entry) {
  const auto bytes = offsetof(FlightEntry, sizes) + entry.listed_sizes * sizeof entry.sizes[0];
  entry.number = entry.collective_sequence = entry.message_sequence = entry.operation = 0;
  entry.created_ns = entry.started_ns = entry.completed_ns = 0;
  entry.details_at = entry.input_hash = entry.output_hash = 0;
  entry.flags &= static_cast<std::uint16_t>(~(FlightEntry::kRetired | FlightEntry::kHashed));
  return {reinterpret_cast<const char*>(&entry), bytes};
}

}  // namespace vccl::records
