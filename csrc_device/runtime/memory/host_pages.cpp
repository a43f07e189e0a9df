#include "csrc_device/runtime/host_pages.hpp"

#include "csrc_device/runtime/memory/page_budget.hpp"

namespace vdev {

bool back_host_memory(std::byte* memory, std::size_t size) {
  return back_with_pages(memory, size);
}

std::string explain_missing_pages() {
  return page_budget().explanation();
}

}  // namespace vdev
