#include "transport/message_mapped.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "transport/slot_copy.hpp"

namespace vccl {
namespace {

constexpr auto kLivenessPeriod = std::chrono::milliseconds(100);
constexpr int kPacketsAtOnce = 64;  // of one peer, so that the others get their turn

// What was read before comes before what is read after. The thread sanitizer does not know fences; nothing
// that it should see depends on this one.
void finish_reads() {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wtsan"
  std::atomic_thread_fence(std::memory_order_acquire);
#pragma GCC diagnostic pop
}

}  // namespace

MappedPort::MappedPort(Group& group) : group_(group) {
  const MessageLayout layout = group.host.messages();
  const auto own = static_cast<std::size_t>(group.host.index);
  for (std::size_t i = 0; i < group.host.ranks.size(); ++i) {
    peers_.push_back(std::make_unique<Peer>(layout.channel(own, i), layout.channel(i, own)));
    index_of_[group.host.ranks[i]] = i;
  }
}

void MappedPort::send(int to, const Envelope& envelope, std::span<const std::byte> bytes) {
  Packet packet = offer_of(index_of_.at(to), bytes);
  packet.tag = envelope.tag;
  packet.id = envelope.id;
  packet.bytes = envelope.bytes;
  packet.signature = envelope.signature;
  Peer& peer = peer_of(to);
  if (packet.kind != PacketKind::eager) peer.offered[packet.id] = {packet, bytes};
  peer.messages.push_back({packet, bytes});
}

/// How a message goes to the peer, and where it lies.
Packet MappedPort::offer_of(std::size_t index, std::span<const std::byte> bytes) const {
  Packet packet{};
  packet.kind = PacketKind::staged;
  if (bytes.size() <= MessageChannel::kEagerBytes) {
    packet.kind = PacketKind::eager;
  } else if (index == static_cast<std::size_t>(group_.host.index)) {
    packet.kind = PacketKind::own;
  } else if (const Region* region = region_of(group_, bytes)) {
    packet.kind = PacketKind::mapped;
    packet.region = static_cast<std::uint32_t>(region - group_.regions.data());
    packet.offset = static_cast<std::uint64_t>(bytes.data() - region->base);
  } else if (const auto place = group_.added_regions.find(bytes);
             place && !(peers_[index]->unmapped >> place->region & 1)) {
    packet.kind = PacketKind::mapped;
    packet.region = static_cast<std::uint32_t>(group_.regions.size()) + place->region;
    packet.offset = place->offset;
  }
  return packet;
}

void MappedPort::take(int source, std::uint64_t id, std::span<std::byte> memory) {
  const std::size_t index = index_of_.at(source);
  Peer& peer = *peers_[index];
  const auto offer = peer.offers.find(id);
  const Packet packet = offer->second;
  peer.offers.erase(offer);
  const Transfer transfer{id, place_of(index, packet), memory.data(), memory.size()};
  if (!transfer.from) {
    Packet want{};
    want.kind = PacketKind::want;
    want.id = id;
    peer.answers.push_back({want, {}});
    peer.filling.push_back(transfer);
  } else {
    peer.copies.push_back(transfer);
  }
}

/// Whether a message lies where the peer may have one.
bool MappedPort::holds(std::size_t index, const Packet& packet) {
  const auto& regions = group_.host.regions[index];
  if (packet.region >= regions.size()) {
    const auto added = static_cast<std::uint32_t>(packet.region - regions.size());
    const RegionTable& table = group_.host.messages().regions(index);
    return peers_[index]->regions.holds(table, added, packet.offset, packet.bytes);
  }
  const std::size_t size = regions[packet.region]->size();
  return packet.offset <= size && packet.bytes <= size - packet.offset;
}

/// Where a message lies that was offered in place; null for one that has to be staged. The packet was checked
/// when it came.
const std::byte* MappedPort::place_of(std::size_t index, const Packet& packet) {
  if (packet.kind == PacketKind::own) return peers_[index]->offered.at(packet.id).bytes.data();
  if (packet.kind != PacketKind::mapped) return nullptr;
  const auto& regions = group_.host.regions[index];
  if (packet.region < regions.size()) return regions[packet.region]->base() + packet.offset;
  const auto added = static_cast<std::uint32_t>(packet.region - regions.size());
  PeerRegions& known = peers_[index]->regions;
  if (const auto why = known.map(added, group_.host.processes[index])) {
    group_.log.info("stages messages from memory that rank " + std::to_string(group_.host.ranks[index]) +
                    " added, as it cannot be mapped: " + *why);
  }
  return known.place(added, packet.offset, packet.bytes);
}

bool MappedPort::progress(MessageSink& sink) {
  budget_ = kCopyAtOnce;
  const auto now = Clock::now();
  look_ = now >= next_look_;
  if (look_) next_look_ = now + kLivenessPeriod;
  bool moved = false;
  // Another first one each time: a long copy must not keep the others' messages back.
  first_ = (first_ + 1) % peers_.size();
  for (std::size_t n = 0; n < peers_.size(); ++n) {
    const std::size_t i = (first_ + n) % peers_.size();
    if (!peers_[i]->lost) moved |= progress(i, sink);
  }
  return moved;
}

bool MappedPort::progress(std::size_t index, MessageSink& sink) {
  Peer& peer = *peers_[index];
  // Asked first: what the peer did before its end is seen below.
  peer.end = end_of(index);
  bool moved = read(index, sink);
  moved |= copy(index, sink);
  moved |= fill(index, sink);
  moved |= feed(index, sink);
  moved |= flush(index, sink);
  // With part of the budget gone, what there is of this peer may not all have been moved.
  if (moved || peer.end == End::none || budget_ < kCopyAtOnce) return moved;
  peer.lost = true;
  const std::string rank = "rank " + std::to_string(group_.host.ranks[index]);
  if (peer.end == End::left) {
    sink.lost(group_.host.ranks[index], ErrorCode::peer_left, rank + " left group " + group_.name);
  } else {
    const auto pid = group_.host.processes[index].pid();
    sink.lost(group_.host.ranks[index], ErrorCode::peer_dead,
              rank + " (pid " + std::to_string(pid) + ") died");
  }
  return true;
}

MappedPort::End MappedPort::end_of(std::size_t index) {
  const Peer& peer = *peers_[index];
  if (!peer.watched || index == static_cast<std::size_t>(group_.host.index)) return End::none;
  if (group_.host.line(static_cast<int>(index)).state.load() == RankState::left) return End::left;
  if (peer.end != End::none || !look_ || !group_.host.processes[index].dead()) return peer.end;
  // It may have left in between, and ended then.
  const bool left = group_.host.line(static_cast<int>(index)).state.load() == RankState::left;
  return left ? End::left : End::dead;
}

bool MappedPort::read(std::size_t index, MessageSink& sink) {
  Peer& peer = *peers_[index];
  try {
    for (int i = 0; i < kPacketsAtOnce; ++i) {
      const auto entry = peer.in.next();
      if (!entry) break;
      understand(index, *entry, sink);
    }
  } catch (const Error& error) {
    refuse(index, error.what());
  }
  if (!peer.in.release()) return false;
  if (peer.in.sender_starved()) wake_messages(line(index), false);
  return true;
}

void MappedPort::understand(std::size_t index, const ChannelReader::Entry& entry, MessageSink& sink) {
  Peer& peer = *peers_[index];
  const Packet& packet = entry.packet;
  const int source = group_.host.ranks[index];
  const Envelope envelope{packet.tag, packet.signature, packet.bytes, packet.id};
  const auto offered = peer.offered.find(packet.id);
  const auto offered_as = [&](auto... kinds) {
    return offered != peer.offered.end() && ((offered->second.packet.kind == kinds) || ...);
  };
  switch (packet.kind) {
    case PacketKind::eager:
      sink.offered(source, envelope, entry.payload);
      return;
    case PacketKind::mapped:
      if (holds(index, packet)) break;
      throw Error(ErrorCode::protocol, "offered a message outside of its memory");
    case PacketKind::own:
      if (index == static_cast<std::size_t>(group_.host.index) && offered_as(PacketKind::own)) break;
      throw Error(ErrorCode::protocol, "offered a message as its own");
    case PacketKind::staged:
      break;
    case PacketKind::want: {
      const std::size_t given = group_.regions.size();
      const bool added = offered_as(PacketKind::mapped) && offered->second.packet.region >= given;
      if (!added && !offered_as(PacketKind::staged)) {
        throw Error(ErrorCode::protocol, "asked for a message that it was not offered");
      }
      // It could not map the region: from now on, what lies there is offered as staged at once.
      if (added) peer.unmapped |= std::uint32_t{1} << (offered->second.packet.region - given);
      const auto bytes = offered->second.bytes;
      peer.feeding.push_back({packet.id, bytes.data(), nullptr, bytes.size()});
      peer.offered.erase(offered);
      return;
    }
    case PacketKind::done:
      if (!offered_as(PacketKind::mapped, PacketKind::own)) {
        throw Error(ErrorCode::protocol, "took a message that it was not offered");
      }
      peer.offered.erase(offered);
      sink.sent(packet.id);
      return;
    default:
      throw Error(ErrorCode::protocol, "wrote a packet of unknown kind into its channel");
  }
  if (!peer.offers.emplace(packet.id, packet).second) {
    throw Error(ErrorCode::protocol, "offered a message twice");
  }
  sink.offered(source, envelope, std::nullopt);
}

void MappedPort::refuse(std::size_t index, const std::string& what) const {
  throw Error(ErrorCode::protocol,
              "rank " + std::to_string(group_.host.ranks[index]) + " of group " + group_.name + " " + what);
}

std::size_t MappedPort::advance(Transfer& transfer, std::size_t limit) {
  const std::size_t bytes = std::min({limit, transfer.bytes - transfer.moved, budget_});
  transfer.moved += bytes;
  budget_ -= bytes;
  return bytes;
}

void MappedPort::move(Transfer& transfer, const std::byte* from, std::size_t limit) {
  std::byte* const to = transfer.to + transfer.moved;
  std::memcpy(to, from, advance(transfer, limit));
}

bool MappedPort::copy(std::size_t index, MessageSink& sink) {
  Peer& peer = *peers_[index];
  const auto all = std::numeric_limits<std::size_t>::max();
  bool moved = false;
  while (!peer.copies.empty() && budget_ > 0) {
    Transfer& transfer = peer.copies.front();
    moved = true;
    move(transfer, transfer.from + transfer.moved, all);
    if (transfer.moved < transfer.bytes) break;
    const std::uint64_t id = transfer.id;
    peer.copies.pop_front();
    // A sender that gives up first says so (it fails the group, or leaves) and then writes to its memory
    // again. Our reads come before this fence, and the looks at what it said behind it: had one of the reads
    // seen a later write, the looks would see what was said.
    finish_reads();
    const bool left = group_.host.line(static_cast<int>(index)).state.load() == RankState::left;
    if (left || group_.failure().happened()) continue;
    if (peer.end == End::dead) {
      sink.taken(group_.host.ranks[index], id);
    } else {
      Packet done{};
      done.kind = PacketKind::done;
      done.id = id;
      peer.answers.push_back({done, {}});
    }
  }
  return moved;
}

bool MappedPort::fill(std::size_t index, MessageSink& sink) {
  Peer& peer = *peers_[index];
  bool moved = false;
  while (!peer.filling.empty()) {
    Transfer& transfer = peer.filling.front();
    const std::byte* block = peer.in.block();
    // A block is copied whole or not at all.
    if (!block || budget_ < MessageChannel::kSlotBytes) break;
    move(transfer, block, MessageChannel::kSlotBytes);
    peer.in.release_block();
    moved = true;
    if (peer.in.sender_starved()) wake_messages(line(index), false);
    if (transfer.moved < transfer.bytes) continue;
    const std::uint64_t id = transfer.id;
    peer.filling.pop_front();
    sink.taken(group_.host.ranks[index], id);
  }
  return moved;
}

bool MappedPort::feed(std::size_t index, MessageSink& sink) {
  Peer& peer = *peers_[index];
  bool moved = false;
  while (!peer.feeding.empty()) {
    Transfer& transfer = peer.feeding.front();
    std::byte* slot = peer.out.free_slot();
    if (!slot || budget_ < MessageChannel::kSlotBytes) break;
    const std::size_t bytes = advance(transfer, MessageChannel::kSlotBytes);
    copy_to_slot(slot, transfer.from + transfer.moved - bytes, bytes);
    peer.out.post();
    moved = true;
    wake_messages(line(index), false);
    if (transfer.moved < transfer.bytes) continue;
    const std::uint64_t id = transfer.id;
    peer.feeding.pop_front();
    sink.sent(id);
  }
  return moved;
}

bool MappedPort::flush(std::size_t index, MessageSink& sink) {
  Peer& peer = *peers_[index];
  while (!peer.answers.empty() && peer.out.push(peer.answers.front().packet)) {
    const Packet packet = peer.answers.front().packet;
    peer.answers.pop_front();
    if (packet.kind == PacketKind::done) sink.taken(group_.host.ranks[index], packet.id);
  }
  while (peer.answers.empty() && !peer.messages.empty()) {
    const Outgoing& next = peer.messages.front();
    const bool eager = next.packet.kind == PacketKind::eager;
    if (!peer.out.push(next.packet, eager ? next.bytes : std::span<const std::byte>())) break;
    if (eager) sink.sent(next.packet.id);
    peer.messages.pop_front();
  }
  bool moved = peer.out.publish();
  // A rank with nothing under way need not be disturbed unless its channel fills up.
  if (moved) wake_messages(line(index), peer.out.half_full());
  const bool no_slot = !peer.feeding.empty() && !peer.out.free_slot();
  moved |= peer.out.starve(!peer.answers.empty() || !peer.messages.empty() || no_slot);
  return moved;
}

}  // namespace vccl
