#include "transport/host/operation_start.hpp"

#include <cstring>

#include "base/schedule.hpp"
#include "base/text.hpp"
#include "transport/host/given_up.hpp"

namespace vccl {

OperationSlot& OperationStart::slot(int index) const {
  return group_.host.line(index).operations[operation_.sequence() & 1];
}

WindowRecord OperationStart::record_of(std::span<std::byte> window) const {
  const Region* region = window.empty() ? nullptr : region_of(group_.regions, window);
  if (!region) return {WindowKind::staged, 0, 0, window.size()};
  return {WindowKind::mapped, static_cast<std::uint32_t>(region - group_.regions.data()),
          static_cast<std::uint64_t>(window.data() - region->base), window.size()};
}

void OperationStart::copy_payload(const Announcement& announcement, OperationSlot& own) const {
  const std::size_t bytes = announcement.payload_bytes;
  if (bytes > Peers::kPayloadBytes || announcement.payload[0].size() > bytes ||
      announcement.payload[1].size() > bytes - announcement.payload[0].size()) {
    throw Error(ErrorCode::invalid,
                base::text("a payload of ", bytes, " bytes is too long, or its parts are longer than it"));
  }
  std::byte* to =
      is_inline(announcement) ? own.payload : group_.host.payload(group_.host.index, operation_.sequence());
  for (const auto& part : announcement.payload) {
    if (part.empty()) continue;
    std::memcpy(to, part.data(), part.size());
    to += part.size();
  }
}

void OperationStart::announce(const Announcement& announcement) {
  OperationSlot& own = slot(group_.host.index);
  own.signature = announcement.signature;
  own.algorithm = announcement.algorithm;
  own.order = announcement.order;
  if (announcement.refusal) {
    own.signature.checks |= OperationSlot::kRefuses;
    own.refusal = *announcement.refusal;
    announce_core(group_.own_line());
    own.sequence.store(operation_.sequence());
    return;
  }
  if (announcement.payload_bytes > 0) copy_payload(announcement, own);
  if (!is_inline(announcement)) {
    own.windows.ring = record_of(announcement.window);
    if (announcement.shows) {
      own.windows.input = record_of(announcement.input);
      own.windows.output = record_of(announcement.output);
      own.windows.factor = announcement.factor;
    }
  }
  announce_core(group_.own_line());
  own.sequence.store(operation_.sequence());
}

void OperationStart::pass(const Announcement& announcement) {
  base::schedule::point(base::schedule::Point::operation);
  announce(announcement);
  const std::uint64_t number = operation_.sequence();
  const int ranks = static_cast<int>(group_.host.ranks.size());
  int arrived = 0;
  const auto ready = [&] {
    while (arrived < ranks && read(slot(arrived).sequence) == number) ++arrived;
    return arrived == ranks;
  };
  const auto awaited = [&](int index) { return read(slot(index).sequence) != number; };
  // Only the last rank to announce wakes the others: a rank that is woken earlier would have to sleep again.
  // All stores and loads of `sequence` are in one total order, so the rank that announces last sees all the
  // other announcements.
  if (ready())
    wake_others(group_.host);
  else
    waiter_.until_all_begin(ready, awaited);
  // A rank that gave up before this rank announced does not wait for this rank: its memory may be in use for
  // something else by now. The loads here pair with the failure's record and with the phase that the rank
  // stored behind it. Either this rank sees both, or the rank that gave up sees that this rank has begun, and
  // waits until this rank has ended the operation (MappedPeers::withdraw).
  check_given_up(group_, operation_, failures_);
  compare();
}

void OperationStart::raise_refusals() const {
  std::string text;
  for (int i = 0; i < static_cast<int>(group_.host.ranks.size()); ++i) {
    if ((slot(i).signature.checks & OperationSlot::kRefuses) == 0) continue;
    const Refusal refusal = slot(i).refusal;  // copied, because the slot is memory that a peer writes
    const std::string rank = group_.rank_text(group_.host.ranks[static_cast<std::size_t>(i)]);
    text +=
        text.empty() ? base::text(rank, " refuses ", operation_.text(), ": ") : base::text("; ", rank, ": ");
    text += group_.describe_refusal ? group_.describe_refusal(refusal) : "no reason is known";
  }
  if (!text.empty()) failures_.raise(ErrorCode::invalid, text);
}

void OperationStart::compare() const {
  raise_refusals();
  // All ranks compare with the same rank, so that all of them find the same pair.
  const Signature reference = slot(0).signature;
  int ordered = 0;
  for (int i = 1; i < static_cast<int>(group_.host.ranks.size()); ++i) {
    const Signature signature = slot(i).signature;
    const int first = group_.host.ranks[0], other = group_.host.ranks[i];
    if (signature != reference)
      failures_.raise(ErrorCode::mismatch, operation_.mismatch_text(first, reference, other, signature));
    if (slot(i).algorithm != slot(0).algorithm)
      failures_.raise(ErrorCode::mismatch, operation_.algorithms_text(first, other));
    // A rank announces no order if it is not to be compared, so the first one that does is the reference.
    if (slot(ordered).order == 0) ordered = i;
    if (slot(i).order != 0 && slot(i).order != slot(ordered).order)
      failures_.raise(ErrorCode::mismatch, operation_.order_text(group_.host.ranks[ordered], other));
  }
}

PeerWindow OperationStart::window_of(int index, WindowRecord OperationSlot::Windows::* which) const {
  // The record is copied before it is checked, because the slot is memory that a peer writes.
  const WindowRecord announced = slot(index).windows.*which;
  PeerWindow window{announced.kind, nullptr, announced.size};
  if (window.kind == WindowKind::staged) return window;
  const auto& regions = group_.host.regions[static_cast<std::size_t>(index)];
  const std::uint64_t offset = announced.offset;
  const std::uint32_t region = announced.region;
  if (window.kind != WindowKind::mapped || region >= regions.size() || offset > regions[region]->size() ||
      window.size > regions[region]->size() - offset) {
    failures_.raise(ErrorCode::protocol,
                    base::text(group_.rank_text(group_.host.ranks[index]),
                               " announced a window outside of its memory for ", operation_.text()));
  }
  window.base = regions[region]->base() + offset;
  return window;
}

}  // namespace vccl
