// Sending and receiving blocks over a link to another host.
#include "base/text.hpp"
#include "transport/block_hook.hpp"
#include "transport/connections/control_messages.hpp"
#include "transport/host/given_up.hpp"
#include "transport/host/mapped_link.hpp"
#include "transport/links/remote_links.hpp"

namespace vccl {
namespace {

constexpr std::size_t kBlockBytes = Communicator::kBlockBytes;
constexpr std::uint64_t kSlots = Communicator::kSlots;

}  // namespace

void RemoteOutbox::await_credit() {
  links_.until([&] { return link_.posted - link_.released < kSlots; }, link_, "to read a block of");
}

// A long block goes over the link's stream: a frame with its header and a frame with its bytes, enciphered
// into a slot or lent to libzmq where they lie, which is why drain() waits. A short block is copied and goes
// over the encrypted connection, behind a MessagePack map, and so do all blocks of a link without a stream.
// A block may be made of what was read in the memory of this host's ranks. If one of them has given up, the
// other host must not get it: it may know nothing of the failure, or take it for that of a later operation.
void RemoteOutbox::send(const std::byte* data, std::size_t bytes) {
  check_reads(links_.group(), links_.operation(), links_.failures());
  const std::uint64_t sequence = links_.operation().sequence();
  msgpack::Map fields = links_.take_announcement();
  if (link_.streams(bytes)) {
    if (!fields.empty()) links_.send(link_, "begin", std::move(fields));
    links_.send(link_, link_.sender->prepare(sequence, {data, bytes}, slot()));
  } else {
    fields["seq"] = sequence;
    fields["n"] = ++link_.sent;
    links_.send(link_, "block", std::move(fields), std::span(data, bytes));
  }
  ++link_.posted;
  if (bytes > ZmqSocket::kCopied) lent_ = link_.posted;
  block_moved();
}

void RemoteOutbox::post(std::size_t offset, std::size_t bytes) {
  check_block(links_.operation().window(), offset, bytes);
  lend(links_.operation().window().bytes.data() + offset, bytes);
}

void RemoteOutbox::lend(const std::byte* data, std::size_t bytes) {
  await_credit();
  send(data, bytes);
}

std::byte* RemoteOutbox::reserve() {
  await_credit();
  return slot();
}

std::byte* RemoteOutbox::slot() {
  ZmqSocket& socket = link_.sender ? link_.sender->socket() : *link_.socket;
  return socket.borrowed()->slot(link_.posted, kSlots, kBlockBytes);
}

void RemoteOutbox::commit(std::size_t bytes) {
  if (bytes > kBlockBytes) {
    throw Error(ErrorCode::invalid, base::text("a block of ", bytes, " bytes is longer than ", kBlockBytes));
  }
  await_credit();
  send(slot(), bytes);
}

void RemoteOutbox::drain() {
  // The neighbour releases a block when it has received and read it. By then libzmq has read the block from
  // this rank's memory for the last time. Blocks behind the last long one were copied, and come before this
  // rank's last words on the same connection.
  links_.until([&] { return link_.released >= lent_; }, link_, "to read the last block of");
}

const std::byte* RemoteInbox::take(std::size_t, std::size_t bytes) {
  return take_committed(bytes);
}

const std::byte* RemoteInbox::take_committed(std::size_t bytes) {
  taken_ = link_.streams(bytes) ? &link_.streamed : &link_.blocks;
  links_.until([&] { return !taken_->empty() && (taken_ == &link_.blocks || links_.agrees(link_)); }, link_,
               "to send a block of");
  const RemoteBlock& block = taken_->front();
  const CurrentOperation& operation = links_.operation();
  if (block.sequence != operation.sequence() || block.bytes.size() != bytes) {
    links_.failures().raise(
        ErrorCode::protocol,
        base::text(links_.group().rank_text(link_.rank), " sent a block of ", block.bytes.size(),
                   " bytes for operation ", block.sequence, " where ", links_.group().own_text(),
                   " expected ", bytes, " bytes of ", operation.text()));
  }
  return block.bytes.data();
}

void RemoteInbox::release() {
  const bool is_short = taken_->front().bytes.size() <= ZmqSocket::kCopied;
  taken_->pop_front();
  ++link_.consumed;
  // The neighbour waits for the release of a long block at the end of its operation. That of a short one can
  // go with the next message, or before this rank sleeps.
  if (!is_short || link_.consumed - link_.told >= kSlots / 2) links_.tell_releases();
  block_moved();
}

}  // namespace vccl
