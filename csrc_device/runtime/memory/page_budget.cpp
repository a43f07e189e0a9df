#include "csrc_device/runtime/memory/page_budget.hpp"

#include <algorithm>
#include <utility>

#include "base/fork.hpp"
#include "base/text.hpp"

namespace vdev {
namespace {

constexpr std::size_t kOneMiB = std::size_t{1} << 20;
// Processes that ask at the same time each get a part of what is left, so that up to sixteen of them do not
// take more than there is.
constexpr std::size_t kParts = 16;
constexpr std::size_t kLeastStep = 2 * kOneMiB;
constexpr std::size_t kMostAtOnce = 64 * kOneMiB;
constexpr std::size_t kMostGranted = 16 * kOneMiB;

/// Calls `populate` with the place and the size of one part after the other.
template <class Populate>
bool back_in_parts(std::size_t size, Populate populate) {
  for (std::size_t done = 0; done != size;) {
    const std::size_t taken = page_budget().take(size - done);
    if (taken == 0 || !populate(done, taken)) return false;
    done += taken;
  }
  return true;
}

}  // namespace

std::size_t PageBudget::default_margin() {
  return std::clamp(usable_memory() / 64, 32 * kOneMiB, 256 * kOneMiB);
}

PageBudget::PageBudget(Ask ask, std::size_t margin) : ask_(std::move(ask)), margin_(margin) {}

std::size_t PageBudget::room() const {
  const std::size_t left = ask_().bytes;
  return left - std::min(left, margin_);
}

std::size_t PageBudget::take(std::size_t wanted) {
  const std::lock_guard lock(mutex_);
  if (wanted <= granted_) {
    granted_ -= wanted;
    return wanted;
  }
  const std::size_t left = room();
  if (wanted > left) return 0;
  const std::size_t step = std::clamp(left / kParts, kLeastStep, kMostAtOnce);
  const std::size_t taken = std::min(wanted, step);
  granted_ = std::min((left - taken) / kParts, kMostGranted);
  return taken;
}

std::string PageBudget::explanation() const {
  const MachineRoom machine = ask_();
  return base::text("The machine has ", machine.bytes / kOneMiB, " MiB left for all processes (",
                    machine.limit, "), of which ", margin_ / kOneMiB,
                    " MiB are kept back, so that the system does not have to end a process. Use less "
                    "memory, fewer processes or a machine with more, or raise the limit.");
}

PageBudget& page_budget() {
  static base::OnePerProcess<PageBudget> one;
  return one.get();
}

bool back_with_pages(Arena& arena, std::size_t offset, std::size_t size) {
  return back_in_parts(size,
                       [&](std::size_t at, std::size_t part) { return arena.populate(offset + at, part); });
}

bool back_with_pages(std::byte* memory, std::size_t size) {
  return back_in_parts(size,
                       [&](std::size_t at, std::size_t part) { return populate_pages(memory + at, part); });
}

}  // namespace vdev
