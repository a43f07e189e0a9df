#include "transport/shared/message_channel.hpp"

#include <algorithm>
#include <cstring>

#include "base/futex.hpp"

namespace vccl {
namespace {

constexpr std::size_t kRing = MessageChannel::kRingBytes;
static_assert(kRing % sizeof(Packet) == 0, "a packet never wraps, only its payload does");

// Returns what a packet and its payload take of the ring, in bytes. It is a multiple of the packet's size, so
// that the next packet is aligned.
std::size_t space_of(std::size_t payload) {
  return sizeof(Packet) + (payload + sizeof(Packet) - 1) / sizeof(Packet) * sizeof(Packet);
}

bool is_offer(PacketKind kind) {
  return kind != PacketKind::want && kind != PacketKind::done;
}

}  // namespace

void wake_messages(MessageLine& line, bool idle_too) noexcept {
  std::uint32_t state = line.sleep.load();
  if (state == MessageLine::awake || (state != MessageLine::waiting && !idle_too)) return;
  // Only one of several wakers goes on. From here on the sleeper's wake-up is certain.
  if (!line.sleep.compare_exchange_strong(state, MessageLine::awake)) return;
  line.wakeups.fetch_add(1);
  base::futex_wake(line.wakeups, 1);
}

void sleep_for_messages(MessageLine& line, std::uint32_t seen, std::chrono::nanoseconds time) noexcept {
  base::futex_wait(line.wakeups, seen, time);
}

void ChannelWriter::write(std::uint64_t position, const void* bytes, std::size_t size) {
  const std::size_t at = position % kRing;
  const std::size_t first = std::min(size, kRing - at);
  std::memcpy(channel_.body + at, bytes, first);
  if (first < size) {
    std::memcpy(channel_.body, static_cast<const std::byte*>(bytes) + first, size - first);
  }
}

bool ChannelWriter::push(const Packet& packet, std::span<const std::byte> payload) {
  const std::size_t space = space_of(payload.size());
  if (written_ + space - read_ > kRing) {
    // If a receiver writes nonsense here, this rank overwrites only what that receiver reads.
    read_ = std::min(channel_.counters->read.load(), written_);
    if (written_ + space - read_ > kRing) return false;
  }
  write(written_, &packet, sizeof packet);
  if (!payload.empty()) write(written_ + sizeof packet, payload.data(), payload.size());
  written_ += space;
  offers_ += is_offer(packet.kind);
  eager_bytes_ += payload.size();
  return true;
}

bool ChannelWriter::publish() {
  if (published_ == written_) return false;
  published_ = written_;
  channel_.counters->written.store(written_);
  return true;
}

bool ChannelWriter::half_full() {
  if (2 * (written_ - read_) <= kRing) return false;
  read_ = std::min(channel_.counters->read.load(), written_);
  return 2 * (written_ - read_) > kRing;
}

std::byte* ChannelWriter::free_slot() {
  const bool full = posted_ - channel_.counters->released.load() >= MessageChannel::kSlots;
  return full ? nullptr : channel_.slot(posted_);
}

void ChannelWriter::post() {
  channel_.counters->posted.store(++posted_);
}

bool ChannelWriter::starve(bool starved) {
  if (starved == starved_) return false;
  starved_ = starved;
  channel_.counters->starved.store(starved);
  return starved;
}

void ChannelReader::read(std::uint64_t position, void* bytes, std::size_t size) const {
  const std::size_t at = position % kRing;
  const std::size_t first = std::min(size, kRing - at);
  std::memcpy(bytes, channel_.body + at, first);
  if (first < size) std::memcpy(static_cast<std::byte*>(bytes) + first, channel_.body, size - first);
}

std::optional<ChannelReader::Entry> ChannelReader::next() {
  const std::uint64_t there = channel_.counters->written.load() - read_;
  if (there == 0) return std::nullopt;
  Entry entry;
  // The packet is copied before it is checked, because the ring is memory that a peer writes.
  if (there >= sizeof(Packet)) read(read_, &entry.packet, sizeof(Packet));
  const bool eager = there >= sizeof(Packet) && entry.packet.kind == PacketKind::eager;
  const std::uint64_t payload = eager ? entry.packet.bytes : 0;
  if (there > kRing || there < sizeof(Packet) || payload > MessageChannel::kEagerBytes ||
      space_of(payload) > there) {
    throw Error(ErrorCode::protocol, "wrote what no rank writes into its channel");
  }
  const std::size_t at = (read_ + sizeof(Packet)) % kRing;
  const std::byte* bytes = channel_.body + at;
  if (at + payload > kRing) {
    read(read_ + sizeof(Packet), scratch_, payload);
    bytes = scratch_;
  }
  entry.payload = {bytes, payload};
  read_ += space_of(payload);
  offers_ += is_offer(entry.packet.kind);
  return entry;
}

bool ChannelReader::tell_freed() {
  if (told_offers_ == freed_offers_ && told_bytes_ == freed_bytes_) return false;
  // The bytes are stored first: a sender that sees room for another message also sees the room for its bytes.
  channel_.counters->freed_bytes.store(told_bytes_ = freed_bytes_);
  channel_.counters->freed_offers.store(told_offers_ = freed_offers_);
  return true;
}

bool ChannelReader::release() {
  if (given_back_ == read_) return false;
  given_back_ = read_;
  channel_.counters->read.store(read_);
  return true;
}

const std::byte* ChannelReader::block() const {
  return channel_.counters->posted.load() == released_ ? nullptr : channel_.slot(released_);
}

void ChannelReader::release_block() {
  channel_.counters->released.store(++released_);
}

}  // namespace vccl
