// How the connections of messages are made again when they were cut.
#include <algorithm>

#include "base/text.hpp"
#include "transport/messages/message_links.hpp"
#include "transport/state/lost_ranks.hpp"
#include "transport/support/error_text.hpp"

namespace vccl {

using msgpack::Binary;
using msgpack::Value;

/// Call this when this rank's connection to the peer has ended, and in each progress() until it is made
/// again, because Resumption counts the time between looks. Returns false if it is not made again.
bool MessageLinks::make_again(Link& link) {
  if (!link.is(State::open) || stopped_ || !(link.again || was_cut(link))) {
    link.again.reset();
    link.end.finish();
    return false;
  }
  if (!link.again) {
    link.again.emplace(link.settings.silence);
    group_.log.info(base::text("the connection to ", link.peer_text(), " was cut"));
  }
  if (link.socket->refused() && is_refused_at(link.listener.endpoint)) {
    give_up(link, std::nullopt);
    return false;
  }
  if (link.again->look(link.again->trying())) {
    give_up(link, link.again->trying());
    return false;
  }
  if (link.end.over()) link.again->fail_attempt();
  link.end = ConnectionEnd();  // of the attempt
  if (link.again->attempt_is_due()) redial(link);
  return true;
}

/// Returns whether the first connection to the peer was cut. It was not if the peer refused it. libzmq
/// reports a refused attempt in the same way as a connection that was reset before libzmq saw that it was
/// made.
bool MessageLinks::was_cut(const Link& link) {
  if (link.socket->connected()) return true;
  return link.socket->refused() && !is_refused_at(link.listener.endpoint);
}

void MessageLinks::give_up(Link& link, std::optional<Milliseconds> tried) {
  link.again.reset();
  link.give_up_again(tried);
}

void MessageLinks::redial(Link& link) {
  if (!link.socket->closed()) {
    watch_->remove(link.socket->data_descriptor());
    watch_->remove(link.socket->monitor_descriptor());
  }
  if (link.again->attempts() > 0) {
    group_.log.warn(base::text("attempt ", link.again->attempts(), " to make the connection to ",
                               link.peer_text(), " again has failed"));
  }
  link.again->begin_attempt();
  ++link.attempt;
  moved_ = true;
  try {
    link.connect_again({{"again", true},
                        {"session", Binary{link.session}},
                        {"attempt", link.attempt},
                        {"heard", link.peer.heard()}});
  } catch (const Error& error) {
    // The next attempt may find a free descriptor.
    group_.log.warn(base::text("cannot connect again to ", link.peer_text(), ": ", error.what()));
    return;
  }
  watch_->add(link.socket->data_descriptor(), link.rank);
  watch_->add(link.socket->monitor_descriptor(), link.rank);
  link.socket_ready = true;
}

/// Handles what comes before the answer. Last words of the peer are as good there.
void MessageLinks::hear_answer(Link& link, const ZmqSocket::Received& received) {
  const Value message = read_control(received.control, link.rank, group_.names);
  const std::string& type = message.at("t").as_string();
  if (type == "fail" || type == "left") {
    link.read_last_words(message);
  } else if (type == "hello" && message.at("attempt").as_uint() == link.attempt) {
    group_.log.info(base::text("the connection to ", link.peer_text(), " was cut, and was made again after ",
                               duration_text(link.again->lasted())));
    link.again.reset();
    link.peer.repeat(message.at("heard").as_uint());
  }
}

/// Returns whether the peer may make its connection again.
bool MessageLinks::may_come_again(const Link& link) const {
  return link.is(State::open) && !link.their_session.empty() && !stopped_;
}

std::string MessageLinks::session_of(const Value& hello) {
  try {
    return hello.at("session").as_binary();
  } catch (const Error&) {
    return "";  // no rank has this one
  }
}

/// Returns whether a hello with the right token proves that it is the peer's next one.
bool MessageLinks::is_next_hello(const Link& link, const Value& hello) const {
  if (!may_come_again(link) || link.route_end.noticed()) return false;
  if (session_of(hello) != link.their_session) return false;
  try {
    return hello.at("attempt").as_uint() > link.their_attempt;
  } catch (const Error&) {
    return false;
  }
}

/// Binds the peer's new connection.
void MessageLinks::welcome(Link& link, const Value& hello, const std::string& route) {
  link.their_attempt = hello.at("attempt").as_uint();
  bind(link, route);
  group_.log.info(
      base::text("the connection from ", link.peer_text(), " was cut, and was made again",
                 link.awaited ? base::text(" after ", duration_text(link.awaited->lasted())) : ""));
  link.awaited.reset();
  listener_->post(
      route, link.hello({{"again", true}, {"attempt", link.their_attempt}, {"heard", link.peer.heard()}}));
  const std::uint64_t heard = hello.at("heard").as_uint();
  // This rank sends on its own connection, if it has one.
  if (link.socket)
    link.peer.confirm(heard);
  else
    link.peer.repeat(heard);
}

/// Call this when the peer's connection has ended, and the peer can make it again.
void MessageLinks::await_peer(Link& link) {
  link.awaited.emplace(link.settings.silence);
  group_.log.info(base::text("the connection from ", link.peer_text(), " was cut"));
}

/// Ends the wait for peers that cannot connect again any more.
void MessageLinks::await_peers() {
  for (auto& link : links_) {
    if (!link || !link->awaited) continue;
    const bool gone = group_.end_of(link->rank) || LostRanks(group_).contains(link->rank) || link->end.over();
    if (!gone && link->is(State::open)) {
      if (!link->awaited->look(link->awaited->waiting())) continue;
      // The peer would send on its own connection only. If this rank has one, that is of no use any more.
      link->give_up_again(link->awaited->waiting());
    }
    link->awaited.reset();
    link->route_end.finish();
  }
}

bool MessageLinks::makes_again() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](auto& link) { return link && (link->again || link->awaited); });
}

void MessageLinks::rejoin_stream(Link& link) {
  if (!link.peer.streams().wants_attempt()) return;
  for (; link.watched > 0; --link.watched)
    watch_->remove(link.peer.streams().descriptors()[link.watched - 1]);
  link.peer.rejoin();
}

}  // namespace vccl
