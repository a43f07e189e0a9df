// The blocks of card memory that are symmetric, and the handles that were made for them.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <c10/core/Allocator.h>

#include "csrc_device/runtime/card.hpp"
#include "csrc_pg/symmetric/handle.hpp"

namespace vccl::symmetric {

/// Holds the blocks that alloc() has handed out, and those of the pools that were named symmetric. The
/// handles of a block go with it; whoever holds one keeps the block's memory. Thread-safe.
class Allocations {
 public:
  /// Returns zeroed memory of `card`, in the order of its current stream. `group` is the group of which a
  /// rendezvous without a group is.
  void* alloc(int card, std::size_t bytes, const std::optional<std::string>& group);
  /// Frees what alloc() has returned.
  void free(void* data);
  /// Returns the bytes that were asked for. Raises RuntimeError for any other pointer.
  std::size_t size_of(void* data);
  /// Returns whether a symmetric block begins at `data`.
  bool has(void* data);
  /// Returns the handle of the block at `data` for the group, and makes it if there is none: then all ranks
  /// must call this. Returns null if no symmetric block begins there.
  c10::intrusive_ptr<Handle> rendezvous(void* data, const std::optional<std::string>& group);
  /// Returns the handle whose own signal pad contains `word`, or null.
  c10::intrusive_ptr<Handle> handle_with_pad(const void* word);
  /// Says that a private pool of a card holds symmetric memory from now on.
  void add_pool(int card, vdev::PoolNumber pool);

 private:
  struct Block {
    int card;
    std::size_t bytes;
    c10::DataPtr memory;  // empty for a block of a pool, which its tensor owns
    std::optional<std::string> group;
    std::map<std::string, c10::intrusive_ptr<Handle>> handles;  // by the names of the groups
  };

  /// Returns the block at `data`, also one of a pool that is seen for the first time, or null. The caller
  /// holds the lock.
  Block* find(void* data);
  void forget(void* data);

  std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;
  std::vector<std::pair<int, vdev::PoolNumber>> pools_;
};

/// Returns the process's object, which is never destroyed.
Allocations& allocations();

/// Returns the group of that name that serves cards. Raises ValueError if another backend serves them, and
/// RuntimeError if there is no group of that name.
c10::intrusive_ptr<ProcessGroupVccl> group_of(const std::string& name);

/// Returns the handle of a tensor's memory for the group. Raises RuntimeError for other memory.
c10::intrusive_ptr<Handle> handle_of(const at::Tensor& tensor, const std::string& group,
                                     const char* operation, const char* argument);

}  // namespace vccl::symmetric
