#include "csrc_pg/collectives/buffers/payloads.hpp"

#include <algorithm>
#include <cstring>

namespace vccl {

Payloads::Payloads(Communicator& communicator, std::size_t bytes, PayloadRoute route)
    : communicator_(communicator),
      peers_(communicator.host_peers()),
      hosts_(communicator.host_ring()),
      route_(route),
      // Without payloads, each host sends a byte, which says that its ranks have begun the operation.
      bytes_(hosts_ ? std::max<std::size_t>(bytes, 1) : bytes),
      places_(communicator.size()) {
  for (int rank = 0; rank < communicator.size(); ++rank) places_.add(nullptr);
  for (int peer = 0; peer < int(peers_.ranks().size()); ++peer)
    places_[peers_.ranks()[std::size_t(peer)]] = peers_.payload(peer);
  if (!hosts_) return;
  if (!is_on_ring()) {
    const int server = peers_.own() % hosts_->rings();
    place(peers_.scratch(server));
    peers_.await(server, HostPhases::kCollected);
  } else if (serves_others()) {
    place(peers_.scratch(peers_.own()));
    exchange();
    peers_.arrive(HostPhases::kCollected);
  } else {
    own_memory_.resize(std::size_t(communicator.size()) * bytes_);
    place(own_memory_.data());
    exchange();
  }
}

void Payloads::finish() {
  if (!hosts_) return;
  if (!is_on_ring()) peers_.arrive(HostPhases::kRead);
  if (!serves_others()) return;
  for (int peer = peers_.own() + hosts_->rings(); peer < int(peers_.ranks().size()); peer += hosts_->rings())
    peers_.await(peer, HostPhases::kRead);
}

/// Returns to how many hosts the payloads of the one at position `host` go.
int Payloads::hops(int host) const {
  if (!has_some(host)) return 0;
  const int size = hosts_->size();
  return route_.to < 0 ? size - 1 : (communicator_.host_of(route_.to) - host + size) % size;
}

/// Sets where the payloads of other hosts lie in `memory`, those of one host one after the other.
void Payloads::place(std::byte* memory) {
  for (int host = 0; host < hosts_->size(); ++host) {
    if (host == hosts_->position()) continue;
    for (const int rank : hosts_->ranks(host)) {
      if (!has_one(rank)) continue;
      places_[rank] = memory;
      memory += bytes_;
    }
  }
}

/// Calls each(ranks) for the ranks of a host whose payloads go into one block, block after block.
template <class Each>
void Payloads::in_blocks(int host, Each each) const {
  const auto ranks = route_.from < 0 ? hosts_->ranks(host) : std::span<const int>(&route_.from, 1);
  const std::size_t in_one = Communicator::kBlockBytes / bytes_;
  for (std::size_t begin = 0; begin < ranks.size(); begin += in_one)
    each(ranks.subspan(begin, std::min(in_one, ranks.size() - begin)));
}

void Payloads::exchange() {
  const int size = hosts_->size(), position = hosts_->position();
  Outbox& right = hosts_->right();
  Inbox& left = hosts_->left();
  const auto send = [&](std::span<const int> ranks) {
    std::byte* to = right.reserve();
    for (const int rank : ranks) {
      std::memcpy(to, places_[rank], bytes_);
      to += bytes_;
    }
    right.commit(ranks.size() * bytes_);
  };
  if (hops(position) > 0) in_blocks(position, send);
  for (int step = 1; step < size; ++step) {
    const int host = (position - step + size) % size;
    if (hops(host) < step) continue;
    in_blocks(host, [&](std::span<const int> ranks) {
      const std::size_t bytes = ranks.size() * bytes_;
      // The payloads of a host lie one after the other in this rank's memory.
      std::memcpy(const_cast<std::byte*>(places_[ranks[0]]), left.take_committed(bytes), bytes);
      // The block is released before a slot is awaited: no rank holds a block while it waits for its
      // neighbour.
      left.release();
      if (step < hops(host)) send(ranks);
    });
  }
}

}  // namespace vccl
