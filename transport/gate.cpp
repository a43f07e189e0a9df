#include "transport/gate.hpp"

#include <functional>

namespace vccl {

// std::less orders unrelated pointers, which < need not.
const Region* region_of(const Group& group, std::span<const std::byte> window) {
  const std::less_equal<const std::byte*> before;
  for (const Region& region : group.regions) {
    const std::byte* end = region.base + region.size;
    if (before(region.base, window.data()) && before(window.data() + window.size(), end)) return &region;
  }
  return nullptr;
}

WindowKind kind_of(const Group& group, std::span<std::byte> window) {
  return !window.empty() && region_of(group, window) ? WindowKind::mapped : WindowKind::staged;
}

OperationSlot& Gate::slot(int index) const {
  return group_.host.line(index).operations[group_.sequence.load(std::memory_order_relaxed) & 1];
}

void Gate::announce() {
  OperationSlot& own = slot(group_.host.index);
  own.signature = group_.signature;
  own.kind = group_.window.kind;
  own.size = group_.window.bytes.size();
  if (own.kind == WindowKind::mapped) {
    const Region* region = region_of(group_, group_.window.bytes);
    own.region = static_cast<std::uint32_t>(region - group_.regions.data());
    own.offset = static_cast<std::uint64_t>(group_.window.bytes.data() - region->base);
  }
  announce_core(group_.own_line());
  own.sequence.store(group_.sequence.load(std::memory_order_relaxed));
  for (int i = 0; i < static_cast<int>(group_.host.ranks.size()); ++i) {
    if (i != group_.host.index) wake(group_.host.line(i));
  }
}

void Gate::pass() {
  announce();
  const std::uint64_t number = group_.sequence.load(std::memory_order_relaxed);
  const int ranks = static_cast<int>(group_.host.ranks.size());
  int arrived = 0;
  const auto ready = [&] {
    while (arrived < ranks && read(slot(arrived).sequence) == number) ++arrived;
    return arrived == ranks;
  };
  const auto awaited = [&](int index) { return read(slot(index).sequence) != number; };
  waiter_.until(ready, awaited, "to begin");
  compare();
}

void Gate::compare() const {
  // Everybody compares with the same rank, so that everybody finds the same pair.
  const Signature reference = slot(0).signature;
  for (int i = 1; i < static_cast<int>(group_.host.ranks.size()); ++i) {
    const Signature signature = slot(i).signature;
    if (signature == reference) continue;
    group_.raise(ErrorCode::mismatch,
                 mismatch_text(group_, group_.host.ranks[0], reference, group_.host.ranks[i], signature));
  }
}

PeerWindow Gate::window_of(int index) const {
  const OperationSlot& announced = slot(index);
  PeerWindow window{announced.kind, nullptr, announced.size};
  if (window.kind == WindowKind::staged) return window;
  const auto& regions = group_.host.regions[static_cast<std::size_t>(index)];
  const std::uint64_t offset = announced.offset;
  const std::uint32_t region = announced.region;
  // Copied first and checked then: the slot is a peer's memory.
  if (window.kind != WindowKind::mapped || region >= regions.size() || offset > regions[region]->size() ||
      window.size > regions[region]->size() - offset) {
    group_.raise(ErrorCode::protocol, "rank " + std::to_string(group_.host.ranks[index]) +
                                          " announced a window outside of its memory for " +
                                          group_.operation_text());
  }
  window.base = regions[region]->base() + offset;
  return window;
}

std::string Gate::mismatch_text(const Group& group, int rank, const Signature& signature, int other_rank,
                                const Signature& other_signature) {
  return "rank " + std::to_string(rank) + " called " + group.describe_signature(signature) +
         " as operation " + std::to_string(group.sequence.load(std::memory_order_relaxed)) + " of group " +
         group.name + ", but rank " + std::to_string(other_rank) + " called " +
         group.describe_signature(other_signature) +
         ". Every rank must call the same collectives in the same order with the same arguments.";
}

}  // namespace vccl
