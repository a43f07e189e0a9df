#include "csrc_pg/communicators/send_memory.hpp"

#include <algorithm>
#include <bit>
#include <exception>
#include <utility>

namespace vccl {

SendMemory::SendMemory(Communicator& communicator) {
  try {
    auto arena = std::make_shared<vdev::Arena>("vccl sends", kCapacity);
    communicator.add_region({arena->fd(), arena->base(), arena->capacity(), arena});
    arena_ = std::move(arena);
  } catch (const std::exception&) {
    arena_.reset();
  }
}

std::shared_ptr<std::byte> SendMemory::take(std::size_t bytes) {
  const auto size_class =
      static_cast<std::size_t>(std::countr_zero(std::bit_ceil(std::max(bytes, kSmallest)) / kSmallest));
  // The transport copies short messages itself.
  const bool is_short = bytes <= kSmallest / 2;
  auto* const block = arena_ && !is_short && size_class < kClasses ? take_block(size_class) : nullptr;
  if (block == nullptr) return {new std::byte[bytes], std::default_delete<std::byte[]>()};
  return {block,
          [self = shared_from_this(), size_class](std::byte* given) { self->give_back(given, size_class); }};
}

std::byte* SendMemory::take_block(std::size_t size_class) {
  const std::lock_guard lock(mutex_);
  auto& free = free_[size_class];
  if (!free.empty()) {
    auto* const block = free.back();
    free.pop_back();
    return block;
  }
  const auto size = kSmallest << size_class;
  if (kCapacity - used_ < size) return nullptr;
  auto* const block = arena_->base() + used_;
  used_ += size;
  return block;
}

void SendMemory::give_back(std::byte* block, std::size_t size_class) {
  const std::lock_guard lock(mutex_);
  free_[size_class].push_back(block);
}

}  // namespace vccl
