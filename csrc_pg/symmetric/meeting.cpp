#include "csrc_pg/symmetric/meeting.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>

#include "base/text.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/allocator.hpp"
#include "csrc_device/torch/gil.hpp"
#include "csrc_device/torch/streams.hpp"
#include "csrc_pg/operations/errors.hpp"

namespace vccl::symmetric {
namespace {

constexpr std::size_t kNameBytes = 256, kTextBytes = 512;

/// Is a SharedRange as it goes to the peers, which check all of it when they receive the range.
struct SentRange {
  std::uint32_t name_bytes = 0;
  std::uint32_t slot = 0, generation = 0, unused = 0;
  std::uint64_t offset = 0, bytes = 0;
  char name[kNameBytes] = {};

  static SentRange of(const vdev::SharedRange& range) {
    SentRange sent;
    TORCH_CHECK(range.memory.size() <= kNameBytes, "the name of a card's memory is too long");
    sent.name_bytes = static_cast<std::uint32_t>(range.memory.size());
    sent.slot = range.slot;
    sent.generation = range.generation;
    sent.offset = range.offset;
    sent.bytes = range.bytes;
    std::memcpy(sent.name, range.memory.data(), range.memory.size());
    return sent;
  }
  vdev::SharedRange range() const {
    const auto length = std::min<std::size_t>(name_bytes, kNameBytes);
    return {std::string(name, length), offset, bytes, slot, generation};
  }
};

/// Is what a rank tells the others. `error` is not empty if the rank cannot take part.
struct Offer {
  std::uint64_t bytes = 0, pad_bytes = 0;
  SentRange buffer, pad;
  char error[kTextBytes] = {};
};

/// Is what a rank tells the others when it has mapped their memory, or could not.
struct Outcome {
  char error[kTextBytes] = {};
};

template <std::size_t N>
void put(char (&to)[N], const std::string& text) {
  std::strncpy(to, text.c_str(), N - 1);
}

/// Returns what each rank has given. The exchange goes over the group's communicator of the CPU, so it ends
/// as collectives do when a rank does not come.
template <class T>
std::vector<T> gather(ProcessGroupVccl& group, const T& own) {
  const auto size = static_cast<std::int64_t>(sizeof(T));
  auto input = at::empty({size}, at::TensorOptions().dtype(at::kByte));
  auto output = at::empty({size * group.getSize()}, at::TensorOptions().dtype(at::kByte));
  std::memcpy(input.mutable_data_ptr(), &own, sizeof(T));
  c10d::AllgatherOptions options;
  options.asyncOp = false;
  group._allgather_base(output, input, options);
  std::vector<T> all(static_cast<std::size_t>(group.getSize()));
  std::memcpy(static_cast<void*>(all.data()), output.const_data_ptr(), all.size() * sizeof(T));
  return all;
}

/// Raises the first error that a rank has told of.
template <class T>
void raise_errors(const ProcessGroupVccl& group, const std::vector<T>& told) {
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    if (told[rank].error[0] == 0) continue;
    const std::string text(told[rank].error, strnlen(told[rank].error, kTextBytes));
    TORCH_CHECK_WITH(DistBackendError, false, "The rendezvous of symmetric memory failed on ",
                     group.names().of_group(static_cast<int>(rank)), ": ", text);
  }
}

/// Makes as many messages as there are receivers. They are all alike.
SentRange share_with_all(int card, const std::byte* data, std::size_t bytes, int receivers) {
  SentRange sent;
  for (int i = 0; i < receivers; ++i) sent = SentRange::of(vdev::share_range(card, data, bytes));
  return sent;
}

void check_alike(const ProcessGroupVccl& group, const std::vector<Offer>& offers) {
  const auto check = [&](std::size_t rank, std::uint64_t first, std::uint64_t other, const char* what) {
    TORCH_CHECK_WITH(
        DistBackendError, first == other, "The ranks differ in a rendezvous of symmetric memory: ",
        group.names().of_group(static_cast<int>(rank)), " has ", other, " bytes of ", what, ", and ",
        group.names().rank(0), " has ", first,
        ". All ranks have to allocate as many bytes, and to meet for the same tensors in the same "
        "order.");
  };
  for (std::size_t rank = 1; rank < offers.size(); ++rank) {
    check(rank, offers[0].bytes, offers[rank].bytes, "memory");
    check(rank, offers[0].pad_bytes, offers[rank].pad_bytes, "signal pad (set_signal_pad_size)");
    // The ranges are used with this rank's own sizes.
    check(rank, offers[0].buffer.bytes, offers[rank].buffer.bytes, "mapped memory");
    check(rank, offers[0].pad.bytes, offers[rank].pad.bytes, "mapped signal pad");
  }
}

/// Raises NotImplementedError unless all ranks are on one host.
void check_one_host(const ProcessGroupVccl& group, const Communicator& communicator) {
  if (communicator.host_count() == 1) return;
  int other = 0;
  while (communicator.host_of(other) == communicator.host_of(group.getRank())) ++other;
  TORCH_CHECK_NOT_IMPLEMENTED(false, "Symmetric memory works on one host, and ",
                              group.names().of_group(group.getRank()), " and ", group.names().rank(other),
                              " are on different hosts (the group has ranks on ", communicator.host_count(),
                              "). Make a group of the ranks of one host.");
}

std::vector<Peer> map_peers(const std::vector<Offer>& offers) {
  std::vector<Peer> peers;
  for (const auto& offer : offers) {
    Peer peer;
    peer.buffer = vdev::receive_range(offer.buffer.range());
    peer.pad = vdev::receive_range(offer.pad.range());
    peers.push_back(std::move(peer));
  }
  return peers;
}

}  // namespace

std::shared_ptr<Connection> meet(ProcessGroupVccl& group, int card, std::byte* data, std::size_t bytes,
                                 std::size_t pad_bytes) {
  const vdev::WithoutGil no_gil;
  const auto communicator = group.host_communicator();
  check_one_host(group, *communicator);
  const int size = group.getSize();
  Offer offer{.bytes = bytes, .pad_bytes = pad_bytes};
  c10::DataPtr pad;  // the hold of this rank on its own pad keeps it after the end of this function
  try {
    TORCH_CHECK(pad_bytes / sizeof(Word) >= static_cast<std::size_t>(size), "a signal pad of ", pad_bytes,
                " bytes is too small for ", size, " ranks (set_signal_pad_size)");
    pad = vdev::allocate_on(card, kPadOffset + pad_bytes);
    // Tasks may still write to what this memory was before.
    vdev::current_stream(card)->drain();
    std::memset(pad.get(), 0, kPadOffset + pad_bytes);
    offer.pad = share_with_all(card, static_cast<std::byte*>(pad.get()), kPadOffset + pad_bytes, size);
    offer.buffer = share_with_all(card, data, std::max<std::size_t>(bytes, 1), size);
  } catch (const std::exception& error) {
    put(offer.error, error.what());
  }
  const auto offers = gather(group, offer);
  raise_errors(group, offers);
  check_alike(group, offers);
  std::vector<Peer> peers;
  Outcome outcome;
  try {
    peers = map_peers(offers);
  } catch (const std::exception& error) {
    put(outcome.error, error.what());
  }
  raise_errors(group, gather(group, outcome));
  Members members{communicator, group.failures(), group.names(), group.getRank(), size};
  auto text = base::text("symmetric memory of ", bytes, " bytes on ", vdev::device_of(card).str());
  return std::make_shared<Connection>(std::move(members), std::move(peers), bytes, pad_bytes,
                                      std::move(text));
}

}  // namespace vccl::symmetric
