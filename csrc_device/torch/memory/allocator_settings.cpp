#include "csrc_device/torch/memory/allocator_settings.hpp"
#include "csrc_device/runtime/environment.hpp"

#include <string>

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

namespace vdev {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;
using c10::CachingAllocator::ConfigTokenizer;

// Returns the options of `settings` that the cards ignore, as a text. Options that are off, or that name the
// native allocator, already describe the cards.
std::string ignored_options(const std::string& settings) {
  const ConfigTokenizer tokens(settings);
  std::string names;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::string& name = tokens[i];
    if (name == ",") continue;
    i = tokens.skipKey(i);
    if (tokens[i] == "False" || tokens[i] == "native") continue;
    names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

void warn(const std::string& settings) {
  const std::string names = ignored_options(settings);
  if (names.empty()) return;
  TORCH_WARN("The memory allocator of ", device_name(),
             " has no options and ignores these allocator settings: ", names,
             ". The capacity of a card is set by VDEV_MEMORY, and a limit below it by "
             "torch.",
             device_name(), ".set_per_process_memory_fraction().");
}

// torch calls this hook, after it has read them, for settings that the program makes. Registering the hook
// also makes torch refuse unknown names. CUDA's own names are registered as known, because programs for CUDA
// set them.
const bool parser_is_registered = [] {
  AcceleratorAllocatorConfig::registerDeviceConfigParserHook(
      [](const std::string& settings) {
        torch::PyWarningHandler as_python_warning;  // torch's binding sets no warning handler
        warn(settings);
      },
      {"backend", "release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "pinned_use_cuda_host_register",
       "pinned_use_hip_host_register", "pinned_num_register_threads", "pinned_reserve_segment_size_mb",
       "graph_capture_record_stream_reuse", "per_process_memory_fraction"});
  return true;
}();

}  // namespace

void warn_of_allocator_settings() {
  static const bool warned = [] {
    warn(c10::CachingAllocator::getAllocatorSettings());
    return true;
  }();
  static_cast<void>(warned);
}

}  // namespace vdev
