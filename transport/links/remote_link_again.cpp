// How a link sends what has to arrive, and how its connections are made again when they were cut.
#include "base/text.hpp"
#include "transport/crypto/wipe.hpp"
#include "transport/links/remote_link.hpp"
#include "transport/state/lost_ranks.hpp"
#include "transport/support/error_text.hpp"

namespace vccl {

using msgpack::Binary;
using msgpack::Map;
using msgpack::Value;

namespace {

// How long the end of the control connection, or last words on it, may be behind the end of the stream.
constexpr Milliseconds kStreamAlone{300};
constexpr Milliseconds kProbePeriod{50};
// A rank that is busy does not answer. After so many pings libzmq would have said that the connection ended.
constexpr std::uint64_t kMostPings = 32;

}  // namespace

void RemoteLink::receive_ready(FunctionRef<void(ZmqSocket::Received&)> understand) {
  // This is read before the messages: libzmq reports the end of a connection after it has received what the
  // peer sent before.
  bool cut = false;
  if (std::exchange(ready.monitor, false)) {
    if (side == Side::right)
      cut = ready.monitor = socket->disconnected();
    else if (socket->hung_up())
      suspect();
    ready.control = true;  // the look may have noticed that something has arrived
  }
  if (suspected_from_) {
    if (probe()) cut = true;
    // A ping may have noticed that something has arrived. The descriptor does not show that, nor anything
    // that comes behind it.
    ready.control = true;
  }
  const std::uint64_t attempt = attempt_;
  if (std::exchange(ready.control, false)) {
    while (auto received = socket->receive()) understand(*received);
  }
  if (attempt_ != attempt) cut = false;  // the peer has connected again meanwhile
  keep_up(std::exchange(cut_, false) || cut);
  end.read_out();
  const ZmqSocket* const before = socket.get();
  connecting();
  if (socket.get() != before) ready = {};
  // One block at a time is deciphered, shortly before it is read.
  while (receiver && ready.stream && streamed.empty()) {
    auto block = receiver->receive();
    ready.stream = block.has_value();
    if (block) streamed.push_back(std::move(*block));
  }
  // The greeting proves that the peer has made the keys.
  if (receiver && receiver->greeted()) wipe(contribution_);
}

void RemoteLink::send_surely(const char* type, Map fields, std::optional<std::span<const std::byte>> block) {
  fields["t"] = type;
  fields["heard"] = journal.heard();
  std::string message = encode_record(std::move(fields));
  std::optional<ZmqMessage> kept, payload;
  if (block) {
    kept = socket->lend(block->data(), block->size());
    payload = kept->share();
  }
  if (in_touch()) transmit(message, payload ? &*payload : nullptr);
  journal.keep(std::move(message), std::move(kept));
}

void RemoteLink::send_loosely(const char* type, Map fields) {
  if (!in_touch()) return;
  fields["t"] = type;
  fields["heard"] = journal.heard();
  transmit(encode_record(std::move(fields)));
}

/// Notes if the connection has ended.
void RemoteLink::transmit(const std::string& message, ZmqMessage* payload) {
  cut_ |= !post(message, payload);
}

bool RemoteLink::post(const std::string& message, ZmqMessage* payload) {
  return !socket->closed() && socket->post(route_, message, payload) == ZmqSocket::Sent::yes;
}

void RemoteLink::post_last(const std::string& message) {
  if (!socket->closed()) socket->post_last(route_, message);
}

/// Some connection to this rank's listener has ended. It may be a stranger's. The peer can connect at once.
void RemoteLink::suspect() {
  if (route_.empty() || socket->closed()) return;
  suspected_from_ = pings_ + 1;
  next_probe_ = {};
  if (!finished_) socket->reopen();
}

/// Returns whether the peer's connection has ended. libzmq says so only to a rank that sends on it, and only
/// a moment after it has reported the end.
bool RemoteLink::probe() {
  if (Clock::now() < next_probe_) return false;
  next_probe_ = Clock::now() + kProbePeriod;
  ++pings_;
  if (socket->closed() ||
      socket->post(route_, control_message("ping", {{"n", pings_}})) == ZmqSocket::Sent::unreachable) {
    suspected_from_.reset();
    return true;
  }
  if (pings_ >= *suspected_from_ + kMostPings) trust();
  return false;
}

void RemoteLink::trust() {
  suspected_from_.reset();
  if (in_touch()) socket->shut();
}

void RemoteLink::understand_pong(std::uint64_t number) {
  if (suspected_from_ && number >= *suspected_from_) trust();
}

void RemoteLink::send(const BlockSender::Prepared& block) {
  sender->keep(block, posted + 1);
  if (in_touch()) cut_ |= !sender->send(block);
}

void RemoteLink::confirm(std::uint64_t blocks) {
  if (sender) sender->confirm(blocks);
}

void RemoteLink::finish() {
  finished_ = true;
  again_.reset();
  journal.forget();
  if (sender) sender->forget();
}

/// Returns whether the connection of the stream has ended, or could not be made again.
bool RemoteLink::stream_is_cut() {
  if (!sender || !in_touch() || sender->socket().closed()) return false;
  if (!std::exchange(ready.broken, false)) return false;
  const bool ended = sender->ended(again_ ? Milliseconds(0) : kStreamAlone);
  ready.broken = sender->suspicious() || !sender->connected();
  sender->retry();
  return ended;
}

/// Call this when all that came before the end of a connection, if it was `cut`, has been read.
void RemoteLink::keep_up(bool cut) {
  cut |= stream_is_cut();
  const bool wanted = is(State::open) || is(State::unknown);
  if (again_ && !wanted) {
    again_.reset();
    end.finish();
  } else if (again_ && side == Side::right) {
    try_again(cut);
  } else if (again_) {
    await_peer();
  } else if (cut && wanted && !finished_) {
    begin_again();
  } else if (cut) {
    end.notice();
  }
}

void RemoteLink::begin_again() {
  if (end.noticed()) return;
  again_.emplace(settled ? settings.silence : settings.silence * Resumption::kMeeting);
  group_.log.info(base::text("the connection to ", peer_text(), " was cut"));
  answered_ = false;
  if (side == Side::right) {
    if (count_cut() > 1) again_->fail_attempt();
    if (again_->attempt_is_due()) attempt();
  } else {
    socket->reopen();
    await_peer();
  }
}

/// Returns how many connections have ended since the first one was made, if the link is not settled.
int RemoteLink::count_cut() {
  return settled ? 0 : ++cuts_;
}

/// Makes another attempt to connect. Old sockets are closed first: what libzmq has not sent is kept here.
void RemoteLink::attempt() {
  answered_ = false;
  again_->begin_attempt();
  ++attempt_;
  if (sender) sender->pause();
  try {
    Map fields = contribution();
    fields.insert(
        {{"again", true}, {"session", Binary{session_}}, {"attempt", attempt_}, {"heard", journal.heard()}});
    connect_again(std::move(fields));
  } catch (const Error& error) {
    // The next attempt may find a free descriptor.
    group_.log.warn(base::text("cannot connect again to ", peer_text(), ": ", error.what()));
  }
  ready = {};
}

void RemoteLink::try_again(bool cut) {
  const bool stream_is_there = !sender || sender->connected();
  if (answered_ && !cut && stream_is_there) {
    group_.log.info(base::text("the connection to ", peer_text(), " was cut, and was made again after ",
                               duration_text(again_->lasted())));
    again_.reset();
    answered_ = false;
    return;
  }
  if (!answered_ && socket->refused() && is_refused_at(listener.endpoint)) return give_up(false);
  if (again_->look(again_->trying())) return give_up(true);
  if (cut && !again_->attempt_failed()) count_cut();
  if (!settled && cuts_ >= kMostCuts) {
    again_.reset();
    return give_up_after(cuts_);
  }
  if (cut || socket->refused()) again_->fail_attempt();
  if (!again_->attempt_is_due()) return;
  group_.log.warn(base::text("attempt ", again_->attempts(), " to make the connection to ", peer_text(),
                             " again has failed"));
  attempt();
}

/// Ends the wait for the peer to connect again if it cannot come any more.
void RemoteLink::await_peer() {
  if (group_.end_of(rank) || LostRanks(group_).contains(rank)) return give_up(false);
  if (again_->look(again_->waiting())) give_up(true);
}

void RemoteLink::give_up(bool within_time) {
  std::optional<Milliseconds> tried;
  if (within_time) tried = side == Side::right ? again_->trying() : again_->waiting();
  again_.reset();
  if (tried && !settled && cuts_ > 1)
    give_up_after(cuts_, tried);
  else
    give_up_again(tried);
}

void RemoteLink::understand_apart(const ZmqSocket::Received& received) {
  if (side == Side::left) {
    if (!received.payload && fits(received))
      welcome(read_control(received.control, rank, group_.names), received.route);
    else
      tell_of_stranger(received.control.sender());
    return;
  }
  // Last words of the peer are as good before its answer. Answers to earlier attempts may come late.
  const Value message = read_control(received.control, rank, group_.names);
  const std::string& type = message.at("t").as_string();
  if (type == "fail" || type == "left")
    read_last_words(message);
  else if (type == "hello" && message.at("attempt").as_uint() == attempt_)
    resume(message, received);
}

/// Returns whether this is the next hello of the peer.
bool RemoteLink::fits(const ZmqSocket::Received& received) const {
  try {
    const Value message = read_control(received.control, -1, group_.names);
    return !finished_ && is(State::open) && message.at("t") == Value("hello") && message.has("again") &&
           listener.read_hello(message, group_.size) == rank &&
           message.at("session").as_binary() == session_ && message.at("attempt").as_uint() > attempt_;
  } catch (const Error&) {
    return false;
  }
}

void RemoteLink::tell_of_stranger(const std::string& address) {
  if (!told_.allows(address)) return;
  group_.log.warn(base::text("somebody at ", address, " who does not prove to be ", group_.rank_text(rank),
                             " wanted to make the connection to ", group_.own_text(),
                             " again, and was not let in. Further ones are not told for a minute."));
}

/// The peer has connected, perhaps again. It may have noticed the end of the old connection earlier than this
/// rank.
void RemoteLink::welcome(const Value& message, const std::string& route) {
  const bool again = message.has("again");
  route_ = route;
  suspect();  // this connection may have ended before this rank knew whose it was
  Map answer = contribution();
  if (again) {
    journal.confirm(message.at("heard").as_uint());
    attempt_ = message.at("attempt").as_uint();
    answer.insert({{"again", true}, {"attempt", attempt_}, {"heard", journal.heard()}});
    if (receiver) answer["frame"] = receiver->resume(attempt_);
  }
  if (!post(hello(std::move(answer)))) {  // this attempt is over
    cut_ = true;
    return;
  }
  if (!again) return;
  group_.log.info(base::text("the connection from ", peer_text(), " was cut, and was made again",
                             again_ ? base::text(" after ", duration_text(again_->lasted())) : ""));
  again_.reset();
  cut_ = false;
  catch_up();
  ready = {};
}

/// The peer has answered the attempt, perhaps as the first one of all.
void RemoteLink::resume(const Value& answer, const ZmqSocket::Received& received) {
  journal.confirm(answer.at("heard").as_uint());
  answered_ = true;
  if (is(State::unknown))
    greet(answer, received);
  else if (sender)
    sender->resume(answer.at("frame").as_uint(), attempt_);
  catch_up();
  ready = {};
}

/// Repeats what the peer has not heard.
void RemoteLink::catch_up() {
  for (const Journal::Message& kept : journal.unconfirmed()) {
    std::optional<ZmqMessage> payload;
    if (kept.payload) payload = kept.payload->share();
    transmit(msgpack::encode(kept.renewed(journal.heard())), payload ? &*payload : nullptr);
  }
  lost_told = 0;
  if (side == Side::left && consumed > 0) {
    told = consumed;
    send_loosely("release", {{"n", told}});
  }
}

}  // namespace vccl
