#include "csrc_device/torch/memory/allocator_settings.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <string>
#include <unordered_set>
#include <utility>

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/torch/threads/interpreter.hpp"

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

// What another device registered before the cards did. A build of torch with CUDA has CUDA's hook and names.
std::function<void(const std::string&)> hook_of_another;
std::unordered_set<std::string> names_of_another;
// Relaxed: a thread that changes the settings while another one allocates has no say in which comes first.
std::atomic<bool> are_in_use{false};

/// Raises ValueError for the settings that the cards cannot follow. A name that another device registered is
/// that device's own setting, and means nothing here.
void check(const std::string& settings) {
  const ConfigTokenizer tokens(settings);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::string& name = tokens[i];
    if (name == ",") continue;
    i = tokens.skipKey(i);
    if (names_of_another.contains(name)) continue;
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

// torch calls this hook, after it has read them, for settings that the program makes.
void take(const std::string& settings) {
  if (hook_of_another) {
    hook_of_another(settings);
    // They may be meant for the other device alone. The first allocation on a card reads them.
    if (!are_in_use.load(std::memory_order_relaxed)) return;
  }
  // torch's binding sets no warning handler.
  interpreter().with_warnings([&] { apply(settings); });
}

}  // namespace

void register_allocator_settings() {
  static bool is_registered = false;  // Python may try to load the module again after a failure
  if (std::exchange(is_registered, true)) return;
  hook_of_another = AcceleratorAllocatorConfig::getConfigParserHook();
  // Registering the hook also makes torch refuse unknown names. torch refuses a name that it knows, too.
  const auto& known = AcceleratorAllocatorConfig::getKeys();
  std::unordered_set<std::string> added;
  for (const auto& name : kSettingsOfCuda) (known.contains(name) ? names_of_another : added).insert(name);
  AcceleratorAllocatorConfig::registerDeviceConfigParserHook(&take, added);
}

void read_allocator_settings() {
  static const bool applied = [] {
    are_in_use.store(true, std::memory_order_relaxed);
    apply(c10::CachingAllocator::getAllocatorSettings());
    return true;
  }();
  static_cast<void>(applied);
}

}  // namespace vdev
