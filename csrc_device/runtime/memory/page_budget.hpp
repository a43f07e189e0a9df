// Taking pages for blocks, as long as the machine has memory for them.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <string>

#include "csrc_device/runtime/memory/arena.hpp"
#include "csrc_device/runtime/memory/memory_limit.hpp"

namespace vdev {

/// Decides whether this process may take more pages from the machine, so that an allocation fails before the
/// system ends a process. Some memory is left for other programs and for the heap of this one. Asking the
/// system takes some ten microseconds, so small requests are granted in advance. Thread-safe.
class PageBudget {
 public:
  using Ask = std::function<MachineRoom()>;
  /// Tests pass what the machine answers, and how much is to be left.
  explicit PageBudget(Ask ask = [] { return machine_room(); }, std::size_t margin = default_margin());

  /// Returns the bytes, at least 1 and at most `wanted`, that may be backed at once. The caller then asks
  /// again for the rest, because other processes take pages, too. Returns 0 if the machine does not have
  /// `wanted` bytes.
  std::size_t take(std::size_t wanted);
  /// Returns the bytes that this process may still take, if no other process takes any.
  std::size_t room() const;
  /// Returns a sentence that says what the machine has left, which limit that is, and what to do.
  std::string explanation() const;

 private:
  static std::size_t default_margin();

  const Ask ask_;
  const std::size_t margin_;
  std::mutex mutex_;  // guards granted_
  std::size_t granted_ = 0;
};

/// Returns the budget of this process.
PageBudget& page_budget();

/// Backs the range of the arena, or the memory, with pages. Returns false if the machine does not have the
/// memory; a part of the range may have pages then.
bool back_with_pages(Arena& arena, std::size_t offset, std::size_t size);
bool back_with_pages(std::byte* memory, std::size_t size);

}  // namespace vdev
