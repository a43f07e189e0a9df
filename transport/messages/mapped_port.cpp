#include "transport/messages/mapped_port.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/periods.hpp"
#include "base/text.hpp"
#include "transport/shared/taken_back.hpp"
#include "transport/slot_copy.hpp"

namespace vccl {
namespace {

constexpr int kPacketsAtOnce = 64;  // of one peer, so that the other peers get their turn

}  // namespace

MappedPort::MappedPort(const Group& group, const FailureChannel& failures, const AddedRegions& added)
    : group_(group), failures_(failures), added_(added) {
  const MessageLayout layout = group.host.messages();
  const auto own = static_cast<std::size_t>(group.host.index);
  for (std::size_t i = 0; i < group.host.ranks.size(); ++i) {
    peers_.push_back(std::make_unique<Peer>(layout.channel(own, i), layout.channel(i, own)));
    index_of_[group.host.ranks[i]] = i;
  }
}

void MappedPort::send(int to, const Envelope& envelope, std::span<const std::byte> bytes) {
  Packet packet{};
  packet.tag = envelope.tag.number;
  packet.of_cards = envelope.tag.of_cards;
  packet.id = envelope.id;
  packet.bytes = envelope.bytes;
  packet.signature = envelope.signature;
  peer_of(to).messages.push_back({packet, bytes});
}

/// Sets how a message that does not go into the ring reaches the peer, and where the message lies.
void MappedPort::place(std::size_t index, Packet& packet, std::span<const std::byte> bytes) const {
  packet.kind = PacketKind::staged;
  if (index == static_cast<std::size_t>(group_.host.index)) {
    packet.kind = PacketKind::own;
  } else if (const Region* region = region_of(group_.regions, bytes)) {
    packet.kind = PacketKind::mapped;
    packet.region = static_cast<std::uint32_t>(region - group_.regions.data());
    packet.offset = static_cast<std::uint64_t>(bytes.data() - region->base);
  } else if (const auto place = added_.find(bytes);
             place && !(peers_[index]->unmapped >> place->region & 1)) {
    packet.kind = PacketKind::mapped;
    packet.region = static_cast<std::uint32_t>(group_.regions.size()) + place->region;
    packet.offset = place->offset;
  }
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

/// Returns whether the message lies in a region that the peer has announced.
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

/// Returns where a message lies that was offered in place, or null for a message that has to be staged. The
/// packet was checked when it came.
const std::byte* MappedPort::place_of(std::size_t index, const Packet& packet) {
  if (packet.kind == PacketKind::own) return peers_[index]->offered.at(packet.id).bytes.data();
  if (packet.kind != PacketKind::mapped) return nullptr;
  const auto& regions = group_.host.regions[index];
  if (packet.region < regions.size()) return regions[packet.region]->base() + packet.offset;
  const auto added = static_cast<std::uint32_t>(packet.region - regions.size());
  PeerRegions& known = peers_[index]->regions;
  if (const auto why = known.map(added, group_.host.processes[index])) {
    group_.log.info(base::text("stages messages from memory that ",
                               group_.rank_text(group_.host.ranks[index]),
                               " added, as it cannot be mapped: ", *why));
  }
  return known.place(added, packet.offset, packet.bytes);
}

bool MappedPort::progress(MessageSink& sink) {
  budget_ = kCopyAtOnce;
  const auto now = Clock::now();
  look_ = now >= next_look_;
  if (look_) next_look_ = now + base::kLivenessPeriod;
  bool moved = false;
  // Each call begins with another peer, because a long copy must not keep the other peers' messages back.
  first_ = (first_ + 1) % peers_.size();
  for (std::size_t n = 0; n < peers_.size(); ++n) {
    const std::size_t i = (first_ + n) % peers_.size();
    if (!peers_[i]->lost) moved |= progress(i, sink);
  }
  return moved;
}

bool MappedPort::progress(std::size_t index, MessageSink& sink) {
  Peer& peer = *peers_[index];
  // This is read first: what the peer did before its end is then seen below.
  peer.end = end_of(index);
  bool moved = read(index, sink);
  moved |= give_back(index, sink);
  moved |= copy(index, sink);
  moved |= fill(index, sink);
  moved |= feed(index, sink);
  moved |= flush(index, sink);
  // If part of the budget is used up, some of what this peer has written may not have been moved yet.
  if (moved || peer.end == End::none || budget_ < kCopyAtOnce) return moved;
  peer.lost = true;
  if (peer.end == End::left) {
    sink.lost(group_.host.ranks[index], ErrorCode::peer_left,
              failures_.left_text_of_index(static_cast<int>(index)));
  } else {
    const auto pid = group_.host.processes[index].pid();
    sink.lost(group_.host.ranks[index], ErrorCode::peer_dead,
              base::text(group_.rank_text(group_.host.ranks[index], base::text("pid ", pid)), " died"));
  }
  return true;
}

MappedPort::End MappedPort::end_of(std::size_t index) {
  const Peer& peer = *peers_[index];
  if (!peer.watched || index == static_cast<std::size_t>(group_.host.index)) return End::none;
  if (group_.host.line(static_cast<int>(index)).state.load() == RankState::left) return End::left;
  if (peer.end != End::none || !look_ || !group_.host.processes[index].dead()) return peer.end;
  // The peer may have left after the first load, and ended then.
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
  const Envelope envelope{{packet.tag, packet.of_cards != 0}, packet.signature, packet.bytes, packet.id};
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
      // The peer could not map the region. From now on, messages that lie there are offered as staged.
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
              base::text(group_.rank_text(group_.host.ranks[index]), " of group ", group_.name, " ", what));
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
    // The sender may have taken its memory back meanwhile, after it has failed the group or left it
    // (MessageEngine::stop).
    finish_reads();
    const bool left = group_.host.line(static_cast<int>(index)).state.load() == RankState::left;
    if (left || failures_.happened()) continue;
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
    // A block is copied as a whole or not at all.
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

/// Publishes to the peer which of its messages are not kept any more.
bool MappedPort::give_back(std::size_t index, const MessageSink& sink) {
  Peer& peer = *peers_[index];
  // The message that a receive waits for may be behind all those that are kept.
  if (peer.in.is_full() && sink.awaits(group_.host.ranks[index])) peer.in.allow_more();
  if (!peer.in.tell_freed()) return false;
  // This pairs with the sender's starve(): either the sender sees what was published, or this rank sees that
  // the sender waits.
  if (peer.in.sender_starved()) wake_messages(line(index), false);
  return true;
}

/// Writes a message, or its offer, to the ring. Returns false if the peer has no room for it at present.
bool MappedPort::push_message(std::size_t index, Outgoing& next) {
  Peer& peer = *peers_[index];
  if (!peer.out.may_offer()) return false;
  const std::size_t bytes = next.bytes.size();
  // An empty message has no bytes to ask for, so it always goes into the ring.
  if (bytes <= MessageChannel::kEagerBytes && (bytes == 0 || peer.out.may_be_eager(bytes))) {
    next.packet.kind = PacketKind::eager;
    return peer.out.push(next.packet, next.bytes);
  }
  place(index, next.packet, next.bytes);
  if (!peer.out.push(next.packet)) return false;
  peer.offered[next.packet.id] = next;
  return true;
}

bool MappedPort::flush(std::size_t index, MessageSink& sink) {
  Peer& peer = *peers_[index];
  while (!peer.answers.empty() && peer.out.push(peer.answers.front().packet)) {
    const Packet packet = peer.answers.front().packet;
    peer.answers.pop_front();
    if (packet.kind == PacketKind::done) sink.taken(group_.host.ranks[index], packet.id);
  }
  while (peer.answers.empty() && !peer.messages.empty()) {
    Outgoing& next = peer.messages.front();
    if (!push_message(index, next)) break;
    const Packet packet = next.packet;
    peer.messages.pop_front();
    if (packet.kind == PacketKind::eager) sink.sent(packet.id);
  }
  bool moved = peer.out.publish();
  // A rank with nothing under way is not disturbed unless its channel fills up.
  if (moved) wake_messages(line(index), peer.out.half_full());
  const bool no_slot = !peer.feeding.empty() && !peer.out.free_slot();
  moved |= peer.out.starve(!peer.answers.empty() || !peer.messages.empty() || no_slot);
  return moved;
}

}  // namespace vccl
