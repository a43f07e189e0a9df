#include "csrc_pg/collectives/buffers/payloads.hpp"

#include <algorithm>
#include <cstring>

namespace vccl {

namespace {

void send(Outbox& right, std::span<const std::byte> bytes) {
  for (std::size_t begin = 0; begin < bytes.size(); begin += Communicator::kBlockBytes) {
    const auto block = bytes.subspan(begin, std::min(bytes.size() - begin, Communicator::kBlockBytes));
    std::memcpy(right.reserve(), block.data(), block.size());
    right.commit(block.size());
  }
}

void receive(Inbox& left, std::span<std::byte> bytes) {
  for (std::size_t begin = 0; begin < bytes.size(); begin += Communicator::kBlockBytes) {
    const auto block = bytes.subspan(begin, std::min(bytes.size() - begin, Communicator::kBlockBytes));
    std::memcpy(block.data(), left.take_committed(block.size()), block.size());
    left.release();
  }
}

}  // namespace

Payloads::Payloads(Communicator& communicator, std::size_t bytes, PayloadRoute route)
    : communicator_(communicator),
      peers_(communicator.host_peers()),
      hosts_(communicator.host_ring()),
      route_(route),
      // Without payloads, each rank sends a byte, which says that the ranks of its host have begun the
      // operation.
      bytes_(hosts_ ? std::max<std::size_t>(bytes, 1) : bytes),
      places_(communicator.size()) {
  for (int rank = 0; rank < communicator.size(); ++rank) places_.add(nullptr);
  for (int peer = 0; peer < int(peers_.ranks().size()); ++peer)
    places_[peers_.ranks()[std::size_t(peer)]] = peers_.payload(peer);
  if (!hosts_ || (!leads() && !waits_for_leader())) return;
  exchange(steps(), peers_.scratch(0));
}

/// Returns whether this rank is not the leader of its host, and reads what that one collects.
bool Payloads::waits_for_leader() const {
  if (leads()) return false;
  if (route_.to >= 0) return route_.to == communicator_.rank();
  return route_.from < 0 || communicator_.host_of(route_.from) != hosts_->position();
}

HostSteps Payloads::steps() const {
  const int size = hosts_->size(), position = hosts_->position();
  if (route_.from >= 0) return steps_from_one(size, position, communicator_.host_of(route_.from));
  if (route_.to >= 0) return steps_to_one(size, position, communicator_.host_of(route_.to));
  return steps_from_all_to_all(size, position);
}

/// Sets where the payloads of a host lie in `memory`, one behind the other. The leader of the host copies
/// them there. Returns the end.
std::byte* Payloads::place(int host, std::byte* memory) {
  for (const int rank : hosts_->ranks(host)) {
    if (!has_one(rank)) continue;
    if (host != hosts_->position())
      places_[rank] = memory;
    else if (leads())
      std::memcpy(memory, places_[rank], bytes_);
    memory += bytes_;
  }
  return memory;
}

void Payloads::exchange(const HostSteps& all, std::byte* memory) {
  std::vector<std::byte*> begins{memory};
  for (const int host : all.hosts) begins.push_back(place(host, begins.back()));
  if (!leads()) return peers_.await(0, HostPhases::kCollected);
  for (const auto& step : all.steps) {
    const std::span bytes(begins[std::size_t(step.begin)], begins[std::size_t(step.end)]);
    if (step.sends)
      send(hosts_->right(step.leap), bytes);
    else
      receive(hosts_->left(step.leap), bytes);
  }
  if (peers_.ranks().size() > 1) peers_.arrive(HostPhases::kCollected);
}

}  // namespace vccl
