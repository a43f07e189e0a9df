// Copies of sends, which complete before they are received.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include <c10/core/Allocator.h>

#include "csrc_pg/communicators/message_count.hpp"

namespace vccl {

/// Takes the place of NCCL's buffers of a connection: holds copies of the sends of one call, which therefore
/// complete when they are copied. The memory is the card's, so that the receiver reads it in place, and does
/// not count as the program's. It lives until all of the messages have been received, and they count as under
/// way until then. Not thread-safe, but for the destructor.
class SendBuffer {
 public:
  SendBuffer(std::size_t bytes, std::shared_ptr<MessageCount> under_way);
  ~SendBuffer();
  SendBuffer(const SendBuffer&) = delete;
  SendBuffer& operator=(const SendBuffer&) = delete;

  std::size_t size() const { return size_; }
  /// Takes memory of the card. Returns false if it has none left.
  bool allocate(int card);
  /// Returns a copy of `bytes`, in the part of the buffer behind the copies that were made before.
  std::span<std::byte> copy(std::span<const std::byte> bytes);

 private:
  const std::size_t size_;
  const std::shared_ptr<MessageCount> under_way_;
  c10::DataPtr memory_;
  std::size_t used_ = 0;
};

}  // namespace vccl
