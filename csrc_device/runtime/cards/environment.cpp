#include "csrc_device/runtime/environment.hpp"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/schedule.hpp"
#include "base/text.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/memory/memory_limit.hpp"
#include "csrc_device/runtime/schedule.hpp"

namespace vdev {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kLeastMemory = 16 * kMiB;
constexpr int kMostRanks = 65536;
constexpr int kMostActivities = 100'000'000;
constexpr const char* kSchedule = "VDEV_SCHEDULE";
constexpr const char* kScheduleTurns = "VDEV_SCHEDULE_TURNS";
constexpr std::size_t kMostMemory = std::size_t{1} << 44;  // 16 TiB: address space is not endless

[[noreturn]] void refuse(const char* variable, std::string_view value, const char* allowed) {
  throw InvalidArgument(base::text(variable, "='", value, "' is not valid: expected ", allowed));
}

std::string_view trim(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

std::optional<int> parse_int(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Returns the value of a variable that is a whole number from 1 to `most`.
int parse_count(const char* variable, const char* value, int most) {
  const auto count = parse_int(trim(value));
  if (!count || *count < 1 || *count > most)
    refuse(variable, value, base::text("a whole number from 1 to ", most).c_str());
  return *count;
}

/// Follows CUDA's rules: the first entry that names no card ends the list, and an entry given twice empties
/// it.
std::vector<int> parse_visible(const char* value, int count) {
  std::vector<int> cards;
  if (!value) {
    for (int i = 0; i < count; ++i) cards.push_back(i);
    return cards;
  }
  std::string_view rest = value;
  while (true) {
    const std::size_t comma = rest.find(',');
    const auto card = parse_int(trim(rest.substr(0, comma)));
    if (!card || *card < 0 || *card >= count) return cards;
    if (std::find(cards.begin(), cards.end(), *card) != cards.end()) return {};
    cards.push_back(*card);
    if (comma == std::string_view::npos) return cards;
    rest.remove_prefix(comma + 1);
  }
}

double unit_of(std::string_view suffix, const char* value) {
  if (suffix.empty() || suffix == "B" || suffix == "b") return 1;
  std::string lower(suffix);
  for (char& c : lower) c = static_cast<char>(c | 0x20);
  const std::string_view after = std::string_view(lower).substr(1);
  if (after.empty() || after == "b" || after == "ib") {
    switch (lower[0]) {
      case 'k':
        return 1024.0;
      case 'm':
        return 1024.0 * 1024;
      case 'g':
        return 1024.0 * 1024 * 1024;
      case 't':
        return 1024.0 * 1024 * 1024 * 1024;
    }
  }
  refuse("VDEV_MEMORY", value, "a size in bytes, or with K, M, G or T, such as 512M or 1.5G");
}

/// Returns how many processes share the machine's memory: as vrun says, else as torchrun says, else one.
int parse_ranks(const char* value, const char* torchrun) {
  if (value) return parse_count("VDEV_MACHINE_RANKS", value, kMostRanks);
  // LOCAL_WORLD_SIZE is not a variable of vccl, so a bad value is ignored here.
  const auto ranks = torchrun ? parse_int(trim(torchrun)) : std::nullopt;
  return std::clamp(ranks.value_or(1), 1, kMostRanks);
}

std::size_t parse_memory(const char* value, int ranks) {
  if (!value) return std::clamp(default_capacity(usable_memory(), ranks), kLeastMemory, kMostMemory);
  const std::string_view text = trim(value);
  double number = 0;
  // from_chars() is used because strtod() depends on the locale.
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  const bool is_number = error == std::errc() && std::isfinite(number) && number >= 0;
  if (!is_number) refuse("VDEV_MEMORY", value, "a size in bytes, or with K, M, G or T, such as 512M or 1.5G");
  const auto suffix = trim(std::string_view(end, static_cast<std::size_t>(text.data() + text.size() - end)));
  const double bytes = number * unit_of(suffix, value);
  if (bytes < static_cast<double>(kLeastMemory) || bytes > static_cast<double>(kMostMemory))
    refuse("VDEV_MEMORY", value, "a size from 16M to 16T");
  return static_cast<std::size_t>(bytes);
}

Pose parse_pose(const char* value) {
  if (!value) return Pose::vdev;
  const std::string_view text = trim(value);
  if (text.empty()) return Pose::vdev;
  if (text == "cuda") return Pose::cuda;
  refuse("VDEV_POSE", value, "cuda, or no value");
}

const Profile* parse_profile(const char* value) {
  if (!value || trim(value).empty()) return nullptr;
  if (const auto* profile = find_profile(trim(value))) return profile;
  std::string known;
  for (const auto& profile : profiles()) known += base::text(known.empty() ? "" : ", ", profile.id);
  refuse("VDEV_PROFILE", value, base::text("one of ", known).c_str());
}

bool parse_launch(const char* value) {
  if (!value) return true;
  const std::string_view text = trim(value);
  if (text.empty() || text == "async") return true;
  if (text == "blocking") return false;
  refuse("VDEV_LAUNCH", value, "async or blocking");
}

/// Returns the schedule that the variables ask for, if they ask for one.
std::optional<base::schedule::Plan> parse_schedule(const VariableLookup& lookup) {
  const char* value = lookup(kSchedule);
  if (!value || trim(value).empty()) return std::nullopt;
  auto plan = base::schedule::parse(trim(value));
  if (!plan) refuse(kSchedule, value, base::schedule::kAllowed);
  // RANK and WORLD_SIZE are not variables of vccl, so bad values are ignored here.
  const auto number = [&](const char* variable, int otherwise) {
    const char* text = lookup(variable);
    return text ? parse_int(trim(text)).value_or(otherwise) : otherwise;
  };
  plan->process = std::max(0, number("RANK", 0));
  plan->processes = std::max(1, number("WORLD_SIZE", 1));
  const char* turns = lookup(kScheduleTurns);
  if (turns && plan->exact) plan->turns = turns;
  return plan;
}

bool parse_flag(const char* variable, const char* value) {
  if (!value) return false;
  const std::string_view text = trim(value);
  if (text.empty() || text == "0") return false;
  if (text == "1") return true;
  refuse(variable, value, "0 or 1");
}

}  // namespace

Pose pose() noexcept {
  static const Pose value = [] {
    const char* text = std::getenv("VDEV_POSE");
    return text != nullptr && trim(text) == "cuda" ? Pose::cuda : Pose::vdev;
  }();
  return value;
}

const char* device_name() noexcept {
  return pose() == Pose::cuda ? "cuda" : "vdev";
}

const char* device_title() noexcept {
  return pose() == Pose::cuda ? "CUDA" : "vdev";
}

Environment parse_environment(const VariableLookup& lookup) {
  Environment result;
  result.pose = parse_pose(lookup("VDEV_POSE"));
  // Returns the name of the variable to read: a script for CUDA sets CUDA's.
  const auto either = [&](const char* ours, const char* cudas) {
    return result.pose == Pose::cuda && !lookup(ours) ? cudas : ours;
  };
  const char* visible = either("VDEV_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES");
  const char* blocking = either("VDEV_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING");
  if (const char* count = lookup("VDEV_DEVICE_COUNT"))
    result.device_count = parse_count("VDEV_DEVICE_COUNT", count, kMostCards);
  result.visible = parse_visible(lookup(visible), result.device_count);
  result.machine_ranks = parse_ranks(lookup("VDEV_MACHINE_RANKS"), lookup("LOCAL_WORLD_SIZE"));
  result.profile = parse_profile(lookup("VDEV_PROFILE"));
  const char* memory = lookup("VDEV_MEMORY");
  result.memory = result.profile != nullptr && !memory ? result.profile->memory
                                                       : parse_memory(memory, result.machine_ranks);
  result.card_memory = result.profile != nullptr || memory ? result.memory : parse_memory(nullptr, 1);
  for (const char* variable : {"VDEV_HOSTID", "VCCL_HOSTID"}) {
    const char* id = lookup(variable);
    result.host_id += base::text(id ? id : "", '\n');
  }
  result.launch_async = parse_launch(lookup("VDEV_LAUNCH"));
  result.launch_trace = parse_flag("VDEV_LAUNCH_TRACE", lookup("VDEV_LAUNCH_TRACE"));
  result.strict = parse_flag("VDEV_STRICT", lookup("VDEV_STRICT"));
  result.launch_blocking = parse_flag(blocking, lookup(blocking));
  if (const char* count = lookup("VDEV_PROFILER_ACTIVITIES"))
    result.profiler_activities = parse_count("VDEV_PROFILER_ACTIVITIES", count, kMostActivities);
  if (const char* path = lookup("VDEV_FIRST_USE_FILE")) result.first_use_file = path;
  parse_schedule(lookup);  // throws for a value that is not allowed
  return result;
}

namespace {
// Relaxed: whoever asks has no other thread that reads the variables.
std::atomic<bool> was_read{false};
// How often start_schedule() was called, which comes before the variables.
std::atomic<std::uint64_t> started_by_call{0};
}  // namespace

bool environment_was_read() noexcept {
  return was_read.load(std::memory_order_relaxed);
}

const Environment& environment() {
  // The object is leaked, because workers may still read it while the process exits. A bad value throws again
  // at each call.
  static const auto* parsed = [] {
    was_read.store(true, std::memory_order_relaxed);
    const VariableLookup lookup = [](const char* name) { return std::getenv(name); };
    auto read = std::make_unique<Environment>(parse_environment(lookup));
    const auto plan = parse_schedule(lookup);
    if (plan && schedules_started() == 0) base::schedule::start(*plan);
    return read.release();
  }();
  return *parsed;
}

std::uint64_t schedules_started() noexcept {
  return started_by_call.load(std::memory_order_relaxed);
}

void start_schedule(const std::string& text, const std::string& turns) {
  started_by_call.fetch_add(1, std::memory_order_relaxed);
  const auto plan = parse_schedule([&](const char* name) -> const char* {
    if (std::string_view(name) == kSchedule) return text.empty() ? "no text" : text.c_str();
    if (std::string_view(name) == kScheduleTurns) return turns.empty() ? nullptr : turns.c_str();
    return std::getenv(name);
  });
  base::schedule::start(*plan);
}

}  // namespace vdev
