#include "transport/messages/message_streams.hpp"

#include <utility>

#include "base/text.hpp"
#include "transport/connections/link_security.hpp"
#include "transport/crypto/wipe.hpp"
#include "transport/support/error_text.hpp"
#include "transport/system/machine.hpp"

namespace vccl {

using msgpack::Binary;
using msgpack::Map;
using msgpack::Value;

MessageStreams::~MessageStreams() {
  wipe(ours_);
  wipe(theirs_);
}

void MessageStreams::add_to_offer(Map& offer) {
  if (std::exchange(offered_, true) || !can_protect_blocks(settings_.security)) return;
  ours_ = random_bytes(Session::kContribution);
  offer["secret"] = Binary{ours_};
}

void MessageStreams::read_want(const Value& want) {
  if (want.has("stream")) {
    if (answered_ || ours_.empty())
      throw Error(ErrorCode::protocol, "answered with a stream that nobody asked for");
    endpoint_ = want.at("stream").as_string();
    FrameProtection protection = agree(group_.rank, peer_, ours_, want.at("secret").as_binary());
    try {
      auto sender = std::make_unique<BlockSender>(endpoint_, std::move(protection), settings_.silence, true);
      descriptors_.push_back(sender->socket().monitor_descriptor());
      connect_by_ = Clock::now() + settings_.patience();
      sender_ = std::move(sender);
      group_.log.info(base::text("long messages to ", group_.rank_text(peer_), " (", endpoint_,
                                 "): ", name_of(settings_.security)));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::system) throw;
      // The receiver takes blocks from the encrypted connection as well.
      group_.log.warn(base::text("messages to ", group_.rank_text(peer_),
                                 " go over the slower encrypted connection: ", error.what()));
    }
  }
  answered_ = true;
  wipe(ours_);
}

void MessageStreams::send(std::uint64_t id, std::span<const std::byte> block, std::uint64_t number) {
  // The peer has read what lay in this slot before, by the bound of the window.
  std::byte* slot = nullptr;
  if (sender_->encrypts())
    slot = sender_->socket().borrowed()->slot(number, kWindow, Communicator::kBlockBytes);
  const BlockSender::Prepared prepared = sender_->prepare(id, block, slot);
  sender_->keep(prepared, number);
  ended_ |= !sender_->send(prepared);
}

bool MessageStreams::wants_attempt() {
  if (!sender_) return false;
  if (sender_->socket().closed()) return again_ && again_->attempt_is_due();
  ended_ |= sender_->ended();
  was_made_ |= sender_->connected();
  if (again_ && sender_->connected() && !ended_) {
    group_.log.info(base::text(stream_text(), " was made again after ", duration_text(again_->lasted())));
    again_.reset();
  }
  if (!again_) return ended_ || (sender_->refused() && !sender_->connected());
  if (ended_) again_->fail_attempt();
  return again_->attempt_is_due();
}

std::uint64_t MessageStreams::begin_attempt() {
  if (!again_) {
    again_.emplace(settings_.silence);
    group_.log.info(base::text(stream_text(), " was cut"));
  } else {
    group_.log.warn(
        base::text("attempt ", again_->attempts(), " to make ", stream_text(), " again has failed"));
  }
  again_->begin_attempt();
  joined_ = ended_ = false;
  if (!sender_->socket().closed()) std::erase(descriptors_, sender_->socket().monitor_descriptor());
  sender_->pause();
  return ++attempt_;
}

std::uint64_t MessageStreams::rejoin(std::uint64_t attempt) {
  if (!receiver_ || attempt <= their_attempt_)
    throw Error(ErrorCode::protocol, "wants to go on with a stream that it does not have");
  their_attempt_ = attempt;
  return receiver_->resume(attempt);
}

void MessageStreams::joined(std::uint64_t attempt, std::uint64_t frame) {
  if (!again_ || joined_ || attempt != attempt_) return;  // an answer to an earlier attempt
  joined_ = true;
  sender_->resume(frame, attempt_);
  descriptors_.push_back(sender_->socket().monitor_descriptor());
}

void MessageStreams::read_offer(const Value& offer) {
  if (!offer.has("secret")) return;
  if (std::exchange(asked_, true)) throw Error(ErrorCode::protocol, "asked for a second stream");
  theirs_ = offer.at("secret").as_binary();
  if (theirs_.size() != Session::kContribution) {
    throw Error(ErrorCode::protocol, base::text("sent a secret of ", theirs_.size(), " bytes"));
  }
}

void MessageStreams::add_to_want(Map& want) {
  if (theirs_.empty()) return;
  try {
    if (can_protect_blocks(settings_.security)) {
      receiver_ = std::make_unique<BlockReceiver>(settings_, group_.log);
      std::string answer = random_bytes(Session::kContribution);
      receiver_->accept(agree(peer_, group_.rank, theirs_, answer));
      descriptors_.push_back(receiver_->socket().data_descriptor());
      want["secret"] = Binary{answer};
      want["stream"] = receiver_->endpoint();
      wipe(answer);
    }
  } catch (const Error& error) {
    receiver_.reset();
    group_.log.warn(base::text("messages from ", group_.rank_text(peer_),
                               " come over the slower encrypted connection: ", error.what()));
  }
  wipe(theirs_);
}

FrameProtection MessageStreams::agree(int from, int to, const std::string& offered,
                                      const std::string& answered) const {
  const std::string purpose =
      base::text("messages|", group_.name, "|", from, "|", to, "|", name_of(settings_.security));
  return FrameProtection::agree(settings_.security, offered, answered, purpose);
}

std::string MessageStreams::stream_text() const {
  return base::text("the stream of messages from ", group_.own_text(), " to ", group_.rank_text(peer_), " (",
                    endpoint_, ", host ", group_.host_name(peer_), ")");
}

std::optional<Error> MessageStreams::problem() {
  if (!sender_) return std::nullopt;
  const auto about = [&](const auto&... what) {
    return base::text(stream_text(), " ", what..., " (group ", group_.name, ")");
  };
  // If the peer has died, its connection for control messages shows it earlier.
  if (was_made_ && again_ && again_->look(2 * again_->waiting()))
    return Error(ErrorCode::peer_dead, about("ended: the network failed"));
  if (!was_made_ && !sender_->connected() && Clock::now() >= connect_by_) {
    return Error(ErrorCode::bootstrap,
                 about("could not be opened within ", duration_text(settings_.patience()),
                       ", although the rank can be reached: ", kFirewall));
  }
  return std::nullopt;
}

bool MessageStreams::restless() const {
  return sender_ && (ended_ || again_ || !sender_->connected() || sender_->suspicious());
}

void MessageStreams::abandon() {
  (void)sender_.release();
  (void)receiver_.release();
}

}  // namespace vccl
