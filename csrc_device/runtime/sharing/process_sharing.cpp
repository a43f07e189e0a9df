#include "csrc_device/runtime/process_sharing.hpp"

#include <unistd.h>

#include <algorithm>

#include "base/fork.hpp"
#include "base/text.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/sharing/memory_name.hpp"
#include "csrc_device/runtime/sharing/peer_memory.hpp"

namespace vdev {
namespace {

PeerMemory& peer_memory() {
  static base::OnePerProcess<PeerMemory> one;
  return one.get();
}

Lease lease_of(const SharedRange& range) {
  return {range.slot, range.generation};
}

/// Returns the bytes of the name of a card's own memory.
std::string name_of(Card& card) {
  const Ledger& ledger = process_ledger();
  MemoryName name;
  name.set_process();
  name.physical_card = static_cast<std::uint32_t>(card.properties().physical_index);
  name.memory_fd = card.arena().fd();
  name.memory = base::identify_file(card.arena().fd());
  name.ledger_fd = ledger.fd();
  name.ledger = ledger.identity();
  name.nonce = ledger.nonce();
  return name.bytes();
}

/// Returns the number that this process has for the physical card of a name.
int find_card(const MemoryName& name) {
  const auto& visible = environment().visible;
  const auto found = std::find(visible.begin(), visible.end(), static_cast<int>(name.physical_card));
  if (found != visible.end()) return static_cast<int>(found - visible.begin());
  std::string seen;
  for (const int physical : visible) seen += base::text(seen.empty() ? "" : ", ", physical);
  if (seen.empty()) seen = "(none)";
  throw InvalidArgument(
      base::text("A tensor of process ", name.pid, " cannot be received: it is on the physical card ",
                 name.physical_card, ", and this process sees the cards ", seen,
                 " (VDEV_DEVICE_COUNT, VDEV_VISIBLE_DEVICES). Let the receiver see that card, too, or send "
                 "tensor.cpu()"));
}

/// Is a hold of the owner itself, which has got its own block back.
class OwnRange final : public HeldRange {
 public:
  OwnRange(std::byte* data, int card, Lease lease) : HeldRange(data, card), lease_(lease) {}
  ~OwnRange() override {
    if (!made_.inherited()) vdev::card(card()).allocator().let_go(lease_);
  }

 private:
  const Lease lease_;
  const base::ProcessMark made_;
};

std::unique_ptr<HeldRange> receive_own(Card& card, const SharedRange& range) {
  const Lease lease = lease_of(range);
  std::byte* data = card.allocator().hold(lease, range.offset, range.bytes);
  if (!data)
    throw CardError(
        "the message does not name a block that this process shares. Was it received more than once?");
  return std::make_unique<OwnRange>(data, card.index(), lease);
}

bool is_own(const MemoryName& name) {
  // The number of another process may be the same, in another namespace or after its end.
  return name.pid == ::getpid() && name.nonce == process_ledger().nonce();
}

}  // namespace

SharedRange share_range(int index, const std::byte* p, std::size_t bytes) {
  Card& owner = card(index);
  SharedRange range;
  if (bytes != 0 && !owner.arena().contains(p)) {
    if (auto message = peer_memory().pass_on(p, bytes)) return *std::move(message);
    throw InvalidArgument(base::text(
        "The memory is not that of vdev:", index,
        ": only memory that the cards' allocator has handed out can be shared with other processes"));
  }
  range.memory = name_of(owner);
  range.bytes = bytes;
  if (bytes == 0) return range;
  const Lease lease = owner.allocator().lend(p, bytes);
  range.offset = static_cast<std::uint64_t>(p - owner.arena().base());
  range.slot = lease.slot;
  range.generation = lease.generation;
  return range;
}

std::unique_ptr<HeldRange> receive_range(const SharedRange& range) {
  try {
    const auto name = MemoryName::of_bytes(range.memory);
    name.check_reachable();
    Card& receiver = card(find_card(name));
    if (is_own(name)) return receive_own(receiver, range);
    return peer_memory().receive(name, range, receiver.index());
  } catch (const BadFork&) {
    throw;
  } catch (const InvalidArgument&) {
    throw;
  } catch (const std::exception& error) {
    throw CardError(base::text("A card's tensor of another process cannot be received: ", error.what(), "."));
  }
}

void decline_range(const SharedRange& range) {
  if (range.bytes == 0) return;
  const auto name = MemoryName::of_bytes(range.memory);
  if (in_bad_fork()) return;
  if (is_own(name)) {
    auto& allocator = card(find_card(name)).allocator();
    if (allocator.hold(lease_of(range), range.offset, range.bytes)) allocator.let_go(lease_of(range));
  } else {
    peer_memory().decline(name, range);
  }
}

int card_of_range(const SharedRange& range) {
  return find_card(MemoryName::of_bytes(range.memory));
}

int card_showing(const void* p) noexcept {
  const int own = card_of(p);
  return own >= 0 || p == nullptr ? own : peer_memory().card_of(p);
}

void collect_shared_blocks() {
  for (int index = 0; index < card_count(); ++index) {
    if (card_used(index)) card(index).allocator().collect_lent();
  }
}

}  // namespace vdev
