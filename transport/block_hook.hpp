// Who is told, in the midst of an operation, that a block has moved.
#pragma once

#include <atomic>

namespace vccl {

/// Is called on the operation's thread. Must not throw.
using BlockHook = void (*)() noexcept;

/// Null unless somebody wants to know. Relaxed: who sets it does so before the operations that matter.
inline std::atomic<BlockHook> block_hook{nullptr};

/// Call this when a rank has posted, read or delivered a part of what an operation moves.
inline void block_moved() noexcept {
  if (const BlockHook hook = block_hook.load(std::memory_order_relaxed)) [[unlikely]]
    hook();
}

}  // namespace vccl
