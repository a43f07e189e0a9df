#include "transport/messages/message_peer.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/text.hpp"

namespace vccl {

using msgpack::Value;

namespace {

std::string bytes_text(std::uint64_t bytes) {
  return base::text(bytes, " bytes");
}

}  // namespace

Error MessagePeer::breach(const std::string& what) const {
  return Error(ErrorCode::protocol, base::text(group_.rank_text(rank_), " ", what, " (group ", group_.name,
                                               ", seen by ", group_.own_text(), ")"));
}

template <class Step>
auto MessagePeer::checked(Step step) const {
  try {
    return step();
  } catch (const msgpack::Malformed&) {
    throw;  // MessageLinks names the peer
  } catch (const Error& error) {
    if (error.code() != ErrorCode::protocol) throw;
    throw breach(error.what());
  }
}

template <class Step>
void MessagePeer::journaled(Step step) const {
  try {
    step();
  } catch (const Error& error) {
    throw breach(base::text("sent ", error.what()));
  }
}

void MessagePeer::offer(const Envelope& envelope, std::span<const std::byte> bytes) {
  unoffered_.emplace_back(envelope, bytes);
  make_offers();
}

/// Returns whether a message can be sent before the peer has asked for it.
bool MessagePeer::may_be_eager(std::size_t bytes) const {
  return streams_.sends() && bytes > kShortBytes && bytes <= kBlockBytes &&
         eager_undone_ + bytes <= kEagerRoom;
}

/// Makes offers in the order of the calls, as many as the peer has room for.
void MessagePeer::make_offers() {
  for (; !unoffered_.empty() && offers_sent_ < offers_room_; unoffered_.pop_front()) {
    const auto& [envelope, bytes] = unoffered_.front();
    msgpack::Map fields = signature_fields(envelope.signature);
    fields["id"] = envelope.id;
    fields["tag"] = envelope.tag.number;
    if (envelope.tag.of_cards) fields["cards"] = true;
    fields["bytes"] = envelope.bytes;
    std::optional<ZmqMessage> payload;
    if (bytes.size() <= kShortBytes && short_sent_ + bytes.size() <= short_read_ + kShortRoom) {
      short_sent_ += bytes.size();
      payload.emplace(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
      copied_.push_back(envelope.id);
    } else {
      const bool eager = may_be_eager(bytes.size());
      offered_[envelope.id] = {.bytes = bytes, .wanted = eager, .eager = eager};
      if (eager) {
        fields["eager"] = true;
        eager_undone_ += bytes.size();
        wanted_.push_back(envelope.id);
      } else {
        streams_.add_to_offer(fields);
      }
    }
    put("offer", std::move(fields), std::move(payload));
    ++offers_sent_;
  }
}

void MessagePeer::matched(std::size_t payload) {
  short_freed_ += payload;
  offers_freed_ = std::max(offers_freed_, ++offers_matched_);
  if (short_freed_ - short_told_ >= kShortRoom / 4 || offers_freed_ - offers_told_ >= kMostUnreceived / 4) {
    say_got();
  }
}

void MessagePeer::allow_more() {
  if (offers_freed_ == offers_told_) offers_freed_ = offers_received_;
  say_got();
}

void MessagePeer::take(std::uint64_t id, std::span<std::byte> memory) {
  Incoming& incoming = incoming_.at(id);
  incoming.wanted = true;
  incoming.memory = memory.data();
  if (incoming.eager) {
    if (kept_.contains(id)) asked_for_.push_back(id);
    return;
  }
  msgpack::Map fields{{"id", id}};
  streams_.add_to_want(fields);
  put("want", std::move(fields));
}

void MessagePeer::put(const char* type, msgpack::Map fields, std::optional<ZmqMessage> payload,
                      bool counted) {
  fields["t"] = type;
  if (counted && group_.traffic) group_.traffic->count_sent(rank_);
  outbox_.push_back({std::move(fields), std::move(payload), counted});
}

bool MessagePeer::transmit(const MessagePath& path, Outgoing& next) {
  next.fields["heard"] = journal_.heard();
  std::string control = encode_record(next.fields);
  std::optional<ZmqMessage> payload;
  if (next.payload) payload = next.payload->share();
  if (path.socket->post(path.route, control, payload ? &*payload : nullptr) != ZmqSocket::Sent::yes)
    return false;
  if (next.counted) journaled([&] { journal_.keep(std::move(control), std::move(next.payload)); });
  return true;
}

void MessagePeer::confirm(std::uint64_t heard) {
  // Two ranks may have two connections. What the peer says on one of them can overtake what it has said
  // earlier on the other.
  if (heard >= journal_.confirmed()) journaled([&] { journal_.confirm(heard); });
}

void MessagePeer::repeat(std::uint64_t heard) {
  // The peer needs all later messages, so a count that is too small is a breach.
  journaled([&] { journal_.confirm(heard); });
  // Answers to pings on the old connection prove nothing about the new one.
  std::erase_if(outbox_, [](const Outgoing& outgoing) { return !outgoing.counted; });
  auto kept = journal_.take_back();
  for (; !kept.empty(); kept.pop_back())
    outbox_.push_front({kept.back().renewed(0), std::move(kept.back().payload)});
}

void MessagePeer::forget() {
  journal_.forget();
  outbox_.clear();
  streams_.forget();
}

bool MessagePeer::flush(const MessagePath& path) {
  bool moved = false;
  for (; !outbox_.empty(); outbox_.pop_front()) {
    if (!transmit(path, outbox_.front())) return moved;
    moved = true;
  }
  if (streams_.being_made_again()) return moved;
  // Enciphering a block costs about what a copy costs, so the number of blocks is bounded like copies.
  for (std::size_t bytes = 0; bytes < MessagePort::kCopyAtOnce; bytes += kBlockBytes) {
    if (wanted_.empty() || blocks_sent_ == blocks_read_ + kWindow || !send_block(path)) break;
    moved = true;
  }
  return moved;
}

bool MessagePeer::send_block(const MessagePath& path) {
  const std::uint64_t id = wanted_.front();
  Offered& offered = offered_.at(id);
  const std::size_t bytes = std::min(kBlockBytes, offered.bytes.size() - offered.sent);
  const auto block = offered.bytes.subspan(offered.sent, bytes);
  if (streams_.sends()) {
    streams_.send(id, block, blocks_sent_ + 1);
  } else {
    Outgoing next{{{"t", "block"}, {"id", id}, {"at", std::uint64_t{offered.sent}}},
                  path.socket->lend(block.data(), bytes)};
    if (!transmit(path, next)) return false;
  }
  offered.sent += bytes;
  ++blocks_sent_;
  if (offered.sent == offered.bytes.size()) {
    offered.last_block = blocks_sent_;
    wanted_.pop_front();
  }
  return true;
}

void MessagePeer::understand(const Value& message, const std::optional<ZmqMessage>& payload,
                             MessageSink& sink) {
  const std::string& type = message.at("t").as_string();
  journal_.hear();
  if (group_.traffic) group_.traffic->count_heard(rank_);
  if (message.has("heard")) confirm(message.at("heard").as_uint());
  if (type == "offer") {
    read_offer(message, payload, sink);
  } else if (type == "block") {
    const std::uint64_t id = message.at("id").as_uint();
    if (!payload) throw breach(base::text("sent a block of message ", id, " without bytes"));
    ++blocks_received_;
    read_block(id, message.at("at").as_uint(), *payload, sink);
  } else if (type == "want") {
    read_want(message);
  } else if (type == "got") {
    read_got(message);
  } else if (type == "done") {
    read_done(message.at("id").as_uint(), sink);
  } else if (type == "rejoin") {
    const std::uint64_t attempt = message.at("attempt").as_uint();
    put("joined", {{"attempt", attempt}, {"frame", checked([&] { return streams_.rejoin(attempt); })}});
  } else if (type == "joined") {
    checked([&] { streams_.joined(message.at("attempt").as_uint(), message.at("frame").as_uint()); });
  } else {
    throw breach(base::text("sent a message of type \"", type.substr(0, 32), "\""));
  }
}

void MessagePeer::read_offer(const Value& message, const std::optional<ZmqMessage>& payload,
                             MessageSink& sink) {
  Envelope envelope;
  envelope.id = message.at("id").as_uint();
  envelope.bytes = message.at("bytes").as_uint();
  envelope.tag = {static_cast<std::int32_t>(message.at("tag").as_int(INT32_MIN, INT32_MAX)),
                  message.has("cards")};
  envelope.signature = read_signature(message);
  if (envelope.id <= last_id_) throw breach(base::text("offered message ", envelope.id, " out of turn"));
  last_id_ = envelope.id;
  if (is_full()) throw breach("offered more messages than it was told there is room for");
  ++offers_received_;
  if (!payload) {
    if (envelope.bytes == 0) throw breach("offered an empty message as a long one");
    const bool eager = message.has("eager");
    if (eager ? envelope.bytes > kBlockBytes : kept_.contains(envelope.id)) {
      throw breach(base::text("sent message ", envelope.id, " of ", bytes_text(envelope.bytes), " unasked"));
    }
    incoming_[envelope.id] = {.bytes = envelope.bytes, .eager = eager};
    checked([&] { streams_.read_offer(message); });
    return sink.offered(rank_, envelope, std::nullopt);
  }
  if (payload->size() != envelope.bytes || envelope.bytes > kShortBytes) {
    throw breach(base::text("sent ", bytes_text(payload->size()), " with the offer of a message of ",
                            bytes_text(envelope.bytes)));
  }
  short_received_ += envelope.bytes;
  if (short_received_ - short_told_ > kShortRoom) {
    throw breach("sent more short messages than it was told there is room for");
  }
  sink.offered(rank_, envelope, std::span(payload->data(), payload->size()));
}

void MessagePeer::read_want(const Value& message) {
  const std::uint64_t id = message.at("id").as_uint();
  const auto found = offered_.find(id);
  if (found == offered_.end() || found->second.wanted) {
    throw breach(base::text("asked for message ", id, ", which it was not offered"));
  }
  found->second.wanted = true;
  wanted_.push_back(id);
  checked([&] { streams_.read_want(message); });
}

std::size_t MessagePeer::read_stream(MessageSink& sink) {
  std::optional<RemoteBlock> block = checked([&] { return streams_.receive(); });
  if (!block) return 0;
  const std::size_t bytes = block->bytes.size();
  ++blocks_received_;
  if (has_place(block->sequence)) {
    read_block(block->sequence, std::nullopt, block->bytes, sink);
  } else {
    keep(block->sequence, std::move(block->bytes));
  }
  return bytes;
}

/// Returns whether a block of message `id` can be read: its place is known, or it is a breach.
bool MessagePeer::has_place(std::uint64_t id) const {
  if (id > last_id_) return false;  // the offer may be behind it
  const auto found = incoming_.find(id);
  return found == incoming_.end() || found->second.wanted || !found->second.eager;
}

void MessagePeer::keep(std::uint64_t id, ZmqMessage block) {
  // With a least length, the bytes bound the number of blocks too.
  if (block.size() <= kShortBytes)
    throw breach(base::text("sent ", bytes_text(block.size()), " of message ", id, " unasked"));
  kept_bytes_ += block.size();
  if (kept_bytes_ > kEagerRoom) throw breach("sent more bytes unasked than there is room for");
  if (!kept_.emplace(id, std::move(block)).second) throw breach(base::text("sent message ", id, " twice"));
  // The sender does not wait for the message to be done before it sends the next one.
  if (blocks_received_ - blocks_told_ >= kWindow / 2) say_got();
}

bool MessagePeer::place_kept(MessageSink& sink) {
  if (asked_for_.empty()) return false;
  for (const std::uint64_t id : std::exchange(asked_for_, {})) {
    const ZmqMessage block = std::move(kept_.extract(id).mapped());
    kept_bytes_ -= block.size();
    read_block(id, std::nullopt, block, sink);
  }
  return true;
}

/// `at` is where the block's bytes belong in the message, unless the order of blocks says so.
void MessagePeer::read_block(std::uint64_t id, std::optional<std::uint64_t> at, const ZmqMessage& payload,
                             MessageSink& sink) {
  const auto found = incoming_.find(id);
  if (found == incoming_.end() || !found->second.wanted) {
    throw breach(base::text("sent a block of message ", id, ", which nobody asked for"));
  }
  Incoming& incoming = found->second;
  const std::uint64_t expected = std::min<std::uint64_t>(kBlockBytes, incoming.bytes - incoming.received);
  if (at.value_or(incoming.received) != incoming.received || payload.size() != expected) {
    throw breach(
        base::text("sent ", bytes_text(payload.size()), " of message ", id, " that are not the next block"));
  }
  std::memcpy(incoming.memory + incoming.received, payload.data(), expected);
  incoming.received += expected;
  if (incoming.received < incoming.bytes) return say_got();
  incoming_.erase(found);
  put("done", {{"id", id}});
  sink.taken(rank_, id);
}

void MessagePeer::say_got() {
  short_told_ = short_freed_;
  offers_told_ = offers_freed_;
  blocks_told_ = blocks_received_;
  put("got", {{"short", short_told_}, {"offers", offers_told_}, {"blocks", blocks_told_}});
}

void MessagePeer::read_got(const Value& message) {
  const std::uint64_t shorts = message.at("short").as_uint(), blocks = message.at("blocks").as_uint();
  const std::uint64_t offers = message.at("offers").as_uint();
  if (shorts < short_read_ || shorts > short_sent_ || blocks < blocks_read_ || blocks > blocks_sent_ ||
      offers + kMostUnreceived < offers_room_ || offers > offers_sent_) {
    throw breach("says that it has read what it was not sent");
  }
  short_read_ = shorts;
  blocks_read_ = blocks;
  streams_.confirm(blocks_read_);
  offers_room_ = offers + kMostUnreceived;
  make_offers();
}

void MessagePeer::read_done(std::uint64_t id, MessageSink& sink) {
  const auto found = offered_.find(id);
  if (found == offered_.end() || found->second.last_block == 0) {
    throw breach(base::text("is done with message ", id, ", which it was not sent"));
  }
  // The peer reads blocks in the order in which they were sent.
  blocks_read_ = std::max(blocks_read_, found->second.last_block);
  streams_.confirm(blocks_read_);
  if (found->second.eager) eager_undone_ -= found->second.bytes.size();
  offered_.erase(found);
  sink.sent(id);
}

}  // namespace vccl
