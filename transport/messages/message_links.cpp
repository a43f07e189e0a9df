#include "transport/messages/message_links.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "transport/connections/link_security.hpp"
#include "transport/system/machine.hpp"

namespace vccl {

using msgpack::Array;
using msgpack::Value;

namespace {

constexpr Milliseconds kProbePeriod{100};
constexpr std::size_t kSession = 16;  // bytes
// How long this rank waits for the last messages of a peer whose listener has closed. A rank that leaves
// closes its listener at once, while its last messages may be on their way for as long as it lingers.
constexpr Milliseconds kLastWords{1000};
// After so many unanswered pings, a peer gets further pings only once every kProbePeriod.
constexpr int kPings = 16;
const char kTable[] = "messages";

std::string listener_key(int rank) {
  return base::text("messages/", rank);
}

/// Returns the record of rank `from`.
Value await_record(Meeting& meeting, int from, const RankNames& names, const std::string& key) {
  return read_record(meeting.await(from, key, "to say where messages are listened for"), from, names);
}

}  // namespace

MessageLinks::MessageLinks(const Group& group, const FailureChannel& failures, Meeting& meeting,
                           const LinkSettings& settings, const std::optional<ListenerRecord>& answers)
    : group_(group),
      failures_(failures),
      listener_(std::make_unique<ZmqSocket>(ZmqSocket::Kind::router, settings.silence)) {
  const std::vector<int>& here = group.host.ranks;
  for (int rank = 0; rank < group.size; ++rank) {
    const bool local = std::find(here.begin(), here.end(), rank) != here.end();
    links_.push_back(local ? nullptr : std::make_unique<Link>(group, failures, settings, rank));
  }
  meet(meeting, settings, answers);
}

MessageLinks::~MessageLinks() {
  if (!made_.inherited()) {
    stop();
    return;
  }
  // A forked child has the objects, but neither this object's thread nor libzmq's, and it is no rank.
  (void)watch_.release();
  (void)listener_.release();
  for (auto& link : links_) {
    if (!link) continue;
    (void)link->socket.release();
    link->peer.streams().abandon();
  }
}

std::map<int, std::string> MessageLinks::host_names() const {
  std::map<int, std::string> names;
  for (const auto& link : links_)
    if (link) names[link->rank] = link->listener.host;
  return names;
}

void MessageLinks::clean(Store& store) {
  store.remove(kTable);
}

void MessageLinks::meet(Meeting& meeting, const LinkSettings& settings,
                        const std::optional<ListenerRecord>& answers) {
  const auto ranks = static_cast<std::size_t>(group_.size) - group_.host.ranks.size();
  listens_ = ListenerRecord::listen(*listener_, settings, ranks, group_.log);
  msgpack::Map more{{"security", name_of(settings.security)}};
  if (answers) more["answers"] = msgpack::Binary{answers->encode()};
  meeting.set(listener_key(group_.rank), listens_.encode(std::move(more)));
  group_.log.info(base::text("listening for messages of other hosts on ", listens_.endpoint));
  if (group_.rank == 0) {
    // Rank 0 publishes all listeners under one key, so that every other rank needs one read.
    Array all;
    for (int rank = 0; rank < group_.size; ++rank) {
      all.push_back(await_record(meeting, rank, group_.names, listener_key(rank)));
      meeting.remove(listener_key(rank));
    }
    meeting.set(kTable, encode_record({{"listeners", all}}));
  }
  const Value table = await_record(meeting, 0, group_.names, kTable);
  const Array& listeners = table.at("listeners").as_array();
  if (listeners.size() != links_.size()) {
    throw Error(ErrorCode::protocol,
                base::text(group_.rank_text(0), " tells where ", listeners.size(), " ranks of group ",
                           group_.name, " listen for messages, which has ", links_.size()));
  }
  for (std::size_t rank = 0; rank < links_.size(); ++rank) {
    if (!links_[rank]) continue;
    check_same_security(group_, settings.security, static_cast<int>(rank),
                        listeners[rank].at("security").as_string());
    links_[rank]->learn(ListenerRecord::read(listeners[rank]));
    if (listeners[rank].has("answers")) {
      const auto& record = listeners[rank].at("answers").as_binary();
      answerers_[static_cast<int>(rank)] =
          ListenerRecord::read(read_record(record, static_cast<int>(rank), group_.names));
    }
  }
}

void MessageLinks::start(std::function<void()> notify) {
  watch_ = std::make_unique<DescriptorWatch>(std::move(notify));
  watch_->add(listener_->data_descriptor(), group_.rank);
  watch_->add(listener_->monitor_descriptor(), group_.rank);
  listener_ready_ = true;  // as for `socket_ready` in connect()
}

void MessageLinks::send(int to, const Envelope& envelope, std::span<const std::byte> bytes) {
  Link& link = *links_.at(static_cast<std::size_t>(to));
  if (link.is(State::lost)) return;
  link.needed = true;
  link.peer.offer(envelope, bytes);
}

void MessageLinks::matched(int source, std::size_t payload) {
  links_.at(static_cast<std::size_t>(source))->peer.matched(payload);
}

void MessageLinks::take(int source, std::uint64_t id, std::span<std::byte> memory) {
  links_.at(static_cast<std::size_t>(source))->peer.take(id, memory);
}

bool MessageLinks::progress(MessageSink& sink) {
  read_ = 0;
  moved_ = false;
  for (int owner : watch_->ready()) {
    if (owner == group_.rank) {
      listener_ready_ = true;
    } else {
      Link& link = *links_[static_cast<std::size_t>(owner)];
      link.socket_ready = link.socket != nullptr;  // the descriptor may be that of a stream
      link.stream_ready = true;
    }
  }
  read_listener(sink);
  for (auto& link : links_) {
    if (link && (link->socket_ready || link->again)) read_socket(*link, sink);
    if (link && (link->stream_ready || link->peer.streams().restless()) && link->is(State::open))
      read_stream(*link, sink);
  }
  bool more = false;
  for (auto& link : links_) {
    if (!link || link->is(State::lost)) continue;
    if (link->needed && !link->socket && link->route.empty()) connect(*link);
    moved_ |= link->peer.place_kept(sink);
    // The message that a receive waits for may be behind all those that are kept.
    if (link->peer.is_full() && sink.awaits(link->rank)) link->peer.allow_more();
    flush(*link);
    watch_streams(*link);
    more |= link->socket_ready;
  }
  more |= listener_ready_;
  const bool connects = connecting();
  await_peers();
  report_ends(sink);
  watch_->tick(connects || suspicious() || expects_last_words() || makes_again());
  // This comes last, so that what the engine then calls finds nothing half done.
  for (auto& link : links_) {
    if (!link) continue;
    for (std::uint64_t id : link->peer.take_copied()) sink.sent(id);
  }
  return moved_ || more;
}

void MessageLinks::connect(Link& link) {
  link.session = random_bytes(kSession);
  link.connect(ZmqSocket::Kind::dealer, {{"session", msgpack::Binary{link.session}}});
  link.open();
  watch_->add(link.socket->data_descriptor(), link.rank);
  watch_->add(link.socket->monitor_descriptor(), link.rank);
  link.socket_ready = true;  // descriptors become readable only after an attempt to read
}

void MessageLinks::disconnect(Link& link, Milliseconds linger) noexcept {
  if (!link.socket || link.socket->closed()) return;
  if (watch_) {
    watch_->remove(link.socket->data_descriptor());
    watch_->remove(link.socket->monitor_descriptor());
  }
  closed_.close(*link.socket, linger);
}

/// Returns the same path for as long as that path leads to the peer, because messages must not overtake each
/// other.
std::optional<MessagePath> MessageLinks::path_to(Link& link) {
  if (link.socket)
    return link.end.noticed() || link.again ? std::nullopt
                                            : std::optional(MessagePath{link.socket.get(), {}});
  if (link.route.empty() || link.route_end.noticed() || link.awaited) return std::nullopt;
  return MessagePath{listener_.get(), link.route};
}

void MessageLinks::flush(Link& link) {
  const auto path = path_to(link);
  if (!path) return;
  const bool tries = link.peer.has_something_to_send();
  moved_ |= link.peer.flush(*path);
  // A send may notice a message that has arrived, also if it fails. The descriptor then does not become
  // readable for that message.
  if (tries && path->socket->readable()) (link.socket ? link.socket_ready : listener_ready_) = true;
}

void MessageLinks::read_listener(MessageSink& sink) {
  const bool probe_now = suspicious() && Clock::now() >= next_probe_;
  if (!listener_ready_ && !probe_now) return;
  if (listener_->hung_up()) {
    // The listener does not know whose connection has ended: it may be a stranger's.
    for (auto& link : links_) {
      if (link && !link->route.empty() && !link->route_end.over() && !link->awaited) suspect(*link);
    }
  }
  do {
    while (auto received = listener_->receive()) {
      moved_ = true;
      const auto known = routes_.find(received->route);
      if (known == routes_.end()) {
        greet(*received);
      } else if (known->second >= 0) {  // what comes late on an old connection is sent again
        understand(*links_[static_cast<std::size_t>(known->second)], std::move(*received), sink);
      }
      if (read_ >= kCopyAtOnce) {
        listener_ready_ = true;
        return;
      }
    }
    // All that a peer sent before its end has been read by now.
    for (auto& link : links_) {
      if (link) link->route_end.read_out();
    }
  } while (probe());
  listener_ready_ = false;
}

/// Binds a connection to the rank that its hello names, if the token is right. Any other first message comes
/// from a stranger.
void MessageLinks::greet(const ZmqSocket::Received& received) {
  Link* link = nullptr;
  Value message;
  try {
    message = read_control(received.control, -1, group_.names);
    link = links_[static_cast<std::size_t>(listens_.read_hello(message, group_.size))].get();
    if (message.at("t") != Value("hello") || received.payload) link = nullptr;
  } catch (const Error&) {
    // The frame is no message, or has another token.
  }
  if (link && link->route.empty() && !link->is(State::lost)) {
    link->their_session = session_of(message);
    link->open();
    if (!message.has("again")) return bind(*link, received.route);
    // The connection was cut before this rank heard the peer's first hello.
  }
  if (link && message.has("again") && is_next_hello(*link, message))
    return welcome(*link, message, received.route);
  if (!strangers_.allows(received.address)) return;
  group_.log.warn(base::text("somebody at ", received.address,
                             " who is no rank of the group connected to where ", group_.own_text(),
                             " listens for messages, and was not let in"));
}

void MessageLinks::bind(Link& link, const std::string& route) {
  if (!link.route.empty()) routes_[link.route] = -1;
  link.route = route;
  routes_[route] = link.rank;
  link.pongs_due = 0;
  // The connection may have ended before this rank knew whose it was.
  suspect(link);
}

void MessageLinks::suspect(Link& link) {
  link.suspect = true;
  link.pings = 0;
  link.earlier_pongs = link.pongs_due;
}

bool MessageLinks::suspicious() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](auto& link) { return link && link->suspect && !link->is(State::lost); });
}

/// Returns whether the listener of a peer has closed that has not connected to this rank.
bool MessageLinks::expects_last_words() const {
  return std::any_of(links_.begin(), links_.end(), [](auto& link) {
    return link && link->end.over() && link->route.empty() && !link->is(State::lost);
  });
}

/// Returns whether this rank still tries to connect to a peer, or a stream may have ended. An attempt that
/// takes too long ends.
bool MessageLinks::connecting() {
  bool any = false;
  for (auto& link : links_) {
    if (!link || link->is(State::lost)) continue;
    any |= link->PeerConnection::connecting() || link->peer.streams().restless();
  }
  return any;
}

/// Pings the peers whose connections to this listener may have ended. Returns whether one has ended: what the
/// peer sent before can then be read.
bool MessageLinks::probe() {
  bool ended = false;
  const bool all = Clock::now() >= next_probe_;
  for (auto& link : links_) {
    if (!link || !link->suspect || link->is(State::lost) || (!all && link->pings >= kPings)) continue;
    ++link->pings;
    const ZmqSocket::Sent sent = listener_->post(link->route, control_message("ping"));
    link->pongs_due += sent == ZmqSocket::Sent::yes;
    if (sent != ZmqSocket::Sent::unreachable) continue;
    link->suspect = false;
    if (may_come_again(*link))
      await_peer(*link);
    else
      link->route_end.notice();
    ended = true;
  }
  if (all) next_probe_ = Clock::now() + kProbePeriod;
  return ended;
}

void MessageLinks::read_socket(Link& link, MessageSink& sink) {
  const bool all = link.receive([&](ZmqSocket::Received received) {
    moved_ = true;
    if (link.again)
      hear_answer(link, received);
    else
      understand(link, std::move(received), sink);
    return read_ < kCopyAtOnce;
  });
  link.socket_ready = !all;  // while the connection is made again, this may be read without an event
  if (!all || (!link.again && !link.end.over())) return;
  if (make_again(link) || link.socket->closed()) return;
  moved_ = true;
  // Otherwise libzmq would connect anew, to whatever process listens there now.
  disconnect(link, Milliseconds(0));
  // There may be a second connection, on which the peer sends, and which shows when the peer has ended.
  if (!link.route.empty() && !link.route_end.noticed()) suspect(link);
}

/// Watches the streams that were made since the last call.
void MessageLinks::watch_streams(Link& link) {
  const std::vector<int>& descriptors = link.peer.streams().descriptors();
  for (; link.watched < descriptors.size(); ++link.watched) {
    watch_->add(descriptors[link.watched], link.rank);
    link.stream_ready = true;  // as for `socket_ready` in connect()
  }
}

void MessageLinks::read_stream(Link& link, MessageSink& sink) {
  rejoin_stream(link);
  if (const auto problem = link.peer.streams().problem()) throw Error(*problem);
  while (read_ < kCopyAtOnce) {
    const std::size_t bytes = link.peer.read_stream(sink);
    link.stream_ready = bytes > 0 || link.peer.streams().restless();
    if (bytes == 0) return;
    read_ += bytes;
    moved_ = true;
  }
}

void MessageLinks::close_streams(Link& link, Milliseconds linger) noexcept {
  for (; link.watched > 0; --link.watched)
    watch_->remove(link.peer.streams().descriptors()[link.watched - 1]);
  link.peer.streams().visit_sockets([&](ZmqSocket& socket) { closed_.close(socket, linger); });
}

void MessageLinks::understand(Link& link, ZmqSocket::Received received, MessageSink& sink) {
  if (!link.is(State::open)) return;
  try {
    read(link, received, sink);
  } catch (const msgpack::Malformed& error) {
    throw link.peer.breach(base::text("sent a message that no rank sends: ", error.what()));
  }
}

void MessageLinks::read(Link& link, ZmqSocket::Received& received, MessageSink& sink) {
  if (received.excess) throw link.peer.breach("sent a message of more than two frames");
  if (received.payload) read_ += received.payload->size();
  const Value message = read_control(received.control, link.rank, group_.names);
  const std::string& type = message.at("t").as_string();
  if (type == "ping") {
    link.peer.say("pong");
  } else if (type == "pong") {
    link.pongs_due = std::max(link.pongs_due - 1, 0);
    if (link.earlier_pongs > 0) {
      --link.earlier_pongs;
    } else {
      link.suspect = false;
      link.pings = 0;
    }
    // The peer lives, but does not receive what this rank sends.
    if (link.end.over()) link.route_end.finish();
  } else if (!link.read_last_words(message)) {
    link.peer.understand(message, received.payload, sink);
  }
}

void MessageLinks::report_ends(MessageSink& sink) {
  for (auto& link : links_) {
    if (!link || link->is(State::lost)) continue;
    const bool left = link->is(State::left);
    const bool over = link->route.empty() ? link->end.over(kLastWords)
                                          : link->route_end.over() && (link->end.over() || !link->socket);
    if (!left && !over) continue;
    const std::string how = link->end_text();
    link->lose();
    group_.log.info(how);
    link->peer.forget();
    close_streams(*link, Milliseconds(0));
    moved_ = true;
    sink.lost(link->rank, left ? ErrorCode::peer_left : ErrorCode::peer_dead, how);
  }
}

}  // namespace vccl
