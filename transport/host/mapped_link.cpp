#include "transport/host/mapped_link.hpp"

#include "base/text.hpp"
#include "transport/block_hook.hpp"
#include "transport/slot_copy.hpp"

namespace vccl {
namespace {

constexpr std::size_t kBlockBytes = Communicator::kBlockBytes;
constexpr std::uint64_t kSlots = Communicator::kSlots;

[[noreturn]] void refuse_block(std::size_t offset, std::size_t bytes, std::size_t window) {
  throw Error(ErrorCode::invalid,
              base::text("a block of ", bytes, " bytes at offset ", offset, " is longer than ", kBlockBytes,
                         " or not inside the window of ", window, " bytes"));
}

bool fits(std::size_t offset, std::size_t bytes, std::size_t window) {
  return bytes <= kBlockBytes && offset <= window && bytes <= window - offset;
}

}  // namespace

void check_block(const Window& window, std::size_t offset, std::size_t bytes) {
  if (!fits(offset, bytes, window.bytes.size())) refuse_block(offset, bytes, window.bytes.size());
}

void MappedOutbox::post(std::size_t offset, std::size_t bytes) {
  const Window& window = operation_.window();
  check_block(window, offset, bytes);
  if (window.kind == WindowKind::staged) copy_to_slot(reserve(), window.bytes.data() + offset, bytes);
  send();
}

std::byte* MappedOutbox::reserve() {
  const auto ready = [&] { return posted_ - read(peer_.consumed) < kSlots; };
  waiter_.until(ready, right_, "to read a block of");
  return host_.slots(host_.index) + (posted_ % kSlots) * kBlockBytes;
}

void MappedOutbox::commit(std::size_t bytes) {
  if (bytes > kBlockBytes) refuse_block(0, bytes, kBlockBytes);
  send();
}

void MappedOutbox::send() {
  // This store pairs with the reader's load in await(): a reader that sees it sees the block's bytes.
  publish(own_.posted, ++posted_, peer_);
  block_moved();
}

void MappedOutbox::drain() {
  // This load pairs with the store in release(): the neighbour has read the window before it counts the
  // block.
  waiter_.until([&] { return read(peer_.consumed) == posted_; }, right_, "to read the last block of");
}

void MappedInbox::await() {
  waiter_.until([&] { return read(peer_.posted) > consumed_; }, left_, "to send a block of");
}

const std::byte* MappedInbox::take(std::size_t offset, std::size_t bytes) {
  if (!fits(offset, bytes, window_.size)) refuse_block(offset, bytes, window_.size);
  await();
  if (window_.kind == WindowKind::mapped) return window_.base + offset;
  return host_.slots(left_) + (consumed_ % kSlots) * kBlockBytes;
}

const std::byte* MappedInbox::take_committed(std::size_t bytes) {
  if (bytes > kBlockBytes) refuse_block(0, bytes, kBlockBytes);
  await();
  return host_.slots(left_) + (consumed_ % kSlots) * kBlockBytes;
}

void MappedInbox::release() {
  publish(own_.consumed, ++consumed_, peer_);
  block_moved();
}

}  // namespace vccl
