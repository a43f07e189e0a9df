#include "csrc_pg/communicators/send_buffer.hpp"

#include <cstring>
#include <utility>

#include <c10/util/Exception.h>

#include "csrc_device/torch/allocator.hpp"

namespace vccl {

SendBuffer::SendBuffer(std::size_t bytes, std::shared_ptr<MessageCount> under_way)
    : size_(bytes), under_way_(std::move(under_way)) {
  under_way_->add(1);
}

SendBuffer::~SendBuffer() {
  memory_.clear();  // whoever waits for the messages finds the memory free
  under_way_->add(-1);
}

bool SendBuffer::allocate(int card) {
  try {
    memory_ = vdev::allocate_on(card, size_, vdev::Asker::kernel);
  } catch (const c10::OutOfMemoryError&) {
    return false;
  }
  return true;
}

std::span<std::byte> SendBuffer::copy(std::span<const std::byte> bytes) {
  TORCH_INTERNAL_ASSERT(bytes.size() <= size_ - used_);
  auto* const place = static_cast<std::byte*>(memory_.get()) + used_;
  std::memcpy(place, bytes.data(), bytes.size());
  used_ += bytes.size();
  return {place, bytes.size()};
}

}  // namespace vccl
