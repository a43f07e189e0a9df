#include "csrc_device/torch/memory/allocator_settings.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <unordered_set>

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/torch/interpreter.hpp"

namespace vdev {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;
using c10::CachingAllocator::ConfigTokenizer;

/// Describes a setting that has to have one value.
struct FixedSetting {
  const char* name;
  const char* value;
  const char* reason;
};

constexpr const char* kRegistering =
    "pinned memory of the cards is ordinary memory, which no driver registers";
constexpr FixedSetting kFixedSettings[] = {
    {"backend", "native", "the cards have one allocator, which is called native"},
    {"pinned_use_cuda_host_register", "False", kRegistering},
    {"pinned_use_hip_host_register", "False", kRegistering},
    {"pinned_num_register_threads", "1", kRegistering},
    {"pinned_reserve_segment_size_mb", "0", "pinned memory is taken block by block"},
    {"pinned_use_background_threads", "False",
     "the thread that allocates looks which pinned blocks are free"},
    {"pinned_free_catch_all", "False", "pinned memory is freed where it was allocated"},
    {"graph_capture_record_stream_reuse", "False",
     "what a captured stream has used is reused when the graph's memory pool is"},
    {"per_process_memory_fraction", "1.0", "set_per_process_memory_fraction() sets it for each card"},
};

// CUDA's own settings, which torch does not know without CUDA. The last three describe what the cards do
// anyway: they take memory from the system without the lock, and raise before the system has none.
const std::unordered_set<std::string> kSettingsOfCuda = {"backend",
                                                         "pinned_use_cuda_host_register",
                                                         "pinned_use_hip_host_register",
                                                         "pinned_num_register_threads",
                                                         "pinned_reserve_segment_size_mb",
                                                         "pinned_free_catch_all",
                                                         "graph_capture_record_stream_reuse",
                                                         "per_process_memory_fraction",
                                                         "release_lock_on_cudamalloc",
                                                         "release_lock_on_hipmalloc",
                                                         "throw_on_cudamalloc_oom"};

/// Raises ValueError for the settings that the cards cannot follow.
void check(const std::string& settings) {
  const ConfigTokenizer tokens(settings);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::string& name = tokens[i];
    if (name == ",") continue;
    i = tokens.skipKey(i);
    const auto* const fixed =
        std::ranges::find_if(kFixedSettings, [&](const auto& setting) { return name == setting.name; });
    if (fixed == std::end(kFixedSettings) || tokens[i] == fixed->value) continue;
    TORCH_CHECK_VALUE(false, "The memory allocator of ", device_name(), " cannot follow the setting ", name,
                      ":", tokens[i], ", because ", fixed->reason, ". Leave it out, or set it to ",
                      fixed->value, ".");
  }
}

/// Makes the cards' allocators do what torch has parsed.
void apply(const std::string& settings) {
  check(settings);
  if (AcceleratorAllocatorConfig::use_expandable_segments()) {
    // As CUDA does on platforms that have none. Many programs set it for large GPUs.
    TORCH_WARN_ONCE(
        "expandable_segments not supported on this platform: the memory of a ", device_name(),
        " card is one range of addresses as large as its capacity, in which segments have no room to "
        "grow. Segments have fixed sizes.");
  }
  const auto& divisions = AcceleratorAllocatorConfig::roundup_power2_divisions();
  AllocatorSettings result;
  TORCH_INTERNAL_ASSERT(divisions.size() <= result.power2_divisions.size());
  std::ranges::copy(divisions, result.power2_divisions.begin());
  result.max_split_size = AcceleratorAllocatorConfig::max_split_size();
  result.max_non_split_rounding = AcceleratorAllocatorConfig::max_non_split_rounding_size();
  result.garbage_collection_threshold = AcceleratorAllocatorConfig::garbage_collection_threshold();
  result.large_segment_size = AcceleratorAllocatorConfig::large_segment_size();
  set_allocator_settings(result);
}

// torch calls this hook, after it has read them, for settings that the program makes. Registering the hook
// also makes torch refuse unknown names.
const bool parser_is_registered = [] {
  AcceleratorAllocatorConfig::registerDeviceConfigParserHook(
      [](const std::string& settings) {
        // torch's binding sets no warning handler.
        interpreter().with_warnings([&] { apply(settings); });
      },
      kSettingsOfCuda);
  return true;
}();

}  // namespace

void read_allocator_settings() {
  static const bool applied = [] {
    apply(c10::CachingAllocator::getAllocatorSettings());
    return true;
  }();
  static_cast<void>(applied);
}

}  // namespace vdev
