#include "transport/message_links.hpp"

#include <unistd.h>

#include <algorithm>

#include "transport/host.hpp"

namespace vccl {

using msgpack::Array;
using msgpack::Map;
using msgpack::Value;

namespace {

constexpr int kVersion = 1;
constexpr Milliseconds kLinger{300};
constexpr Milliseconds kProbePeriod{100};
// A rank that leaves closes its door at once, while what it said last may be on its way for as long as it
// lingers.
constexpr Milliseconds kLastWords{1000};
// Asked so often without an answer, a peer is asked by the clock alone.
constexpr int kPings = 16;
const char kTable[] = "messages";

std::string door_key(int rank) {
  return "messages/" + std::to_string(rank);
}

/// What rank `from` has put there.
Value read_record(Store& store, const std::string& key, const Group& group, int from) {
  try {
    return msgpack::decode(store.get(key, group.deadline));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout) throw;
    throw Error(ErrorCode::timeout, "rank " + std::to_string(group.rank) + " waited " +
                                        duration_text(group.deadline.length) + " for rank " +
                                        std::to_string(from) + " to say where messages of group " +
                                        group.name + " are listened for");
  }
}

}  // namespace

MessageLinks::MessageLinks(const Group& group, Store& store, const std::string& address)
    : group_(group),
      owner_(getpid()),
      token_(random_hex(16)),
      door_(std::make_unique<ZmqSocket>(ZmqSocket::Kind::router)) {
  const std::vector<int>& here = group.host.ranks;
  for (int rank = 0; rank < group.size; ++rank) {
    const bool local = std::find(here.begin(), here.end(), rank) != here.end();
    links_.push_back(local ? nullptr : std::make_unique<Link>(group, rank));
  }
  publish(store, address);
  learn(store);
}

MessageLinks::~MessageLinks() {
  if (owner_ == getpid()) {
    stop();
    return;
  }
  // A forked child has the objects, but neither the thread nor libzmq's, and is no rank.
  (void)watch_.release();
  (void)door_.release();
  for (auto& link : links_) {
    if (link) (void)link->own.release();
  }
}

void MessageLinks::clean(Store& store) {
  store.remove(kTable);
}

void MessageLinks::publish(Store& store, const std::string& address) {
  const std::string endpoint = door_->bind(address);
  store.set(door_key(group_.rank),
            msgpack::encode(Map{
                {"v", kVersion}, {"endpoint", endpoint}, {"key", door_->public_key()}, {"token", token_}}));
  group_.log.info("listening for messages of other hosts on " + endpoint);
  if (group_.rank != 0) return;
  // Rank 0 publishes all of them as one: one read a rank, in place of as many as there are ranks.
  Array doors;
  for (int rank = 0; rank < group_.size; ++rank) {
    doors.push_back(read_record(store, door_key(rank), group_, rank));
    store.remove(door_key(rank));
  }
  store.set(kTable, msgpack::encode(Map{{"v", kVersion}, {"doors", doors}}));
}

void MessageLinks::learn(Store& store) {
  const Value table = read_record(store, kTable, group_, 0);
  const Array& doors = table.at("doors").as_array();
  if (doors.size() != links_.size()) {
    throw Error(ErrorCode::protocol, "rank 0 tells where " + std::to_string(doors.size()) +
                                         " ranks of group " + group_.name +
                                         " listen for messages, which has " + std::to_string(links_.size()));
  }
  for (std::size_t rank = 0; rank < links_.size(); ++rank) {
    if (!links_[rank]) continue;
    Link& link = *links_[rank];
    if (doors[rank].at("v") != Value(kVersion)) {
      throw link.peer.breach("listens for messages of another version of vccl");
    }
    link.endpoint = doors[rank].at("endpoint").as_string();
    link.key = doors[rank].at("key").as_string();
    link.token = doors[rank].at("token").as_string();
  }
}

void MessageLinks::start(std::function<void()> notify) {
  watch_ = std::make_unique<DescriptorWatch>(std::move(notify));
  door_->monitor();
  watch_->add(door_->data_descriptor(), group_.rank);
  watch_->add(door_->monitor_descriptor(), group_.rank);
  door_ready_ = true;  // as in connect()
}

void MessageLinks::send(int to, const Envelope& envelope, std::span<const std::byte> bytes) {
  Link& link = *links_.at(static_cast<std::size_t>(to));
  if (link.lost) return;
  link.needed = true;
  if (link.peer.offer(envelope, bytes)) copied_.push_back(envelope.id);
}

void MessageLinks::take(int source, std::uint64_t id, std::span<std::byte> memory) {
  links_.at(static_cast<std::size_t>(source))->peer.take(id, memory);
}

bool MessageLinks::progress(MessageSink& sink) {
  read_ = 0;
  moved_ = false;
  for (int owner : watch_->ready()) {
    if (owner == group_.rank) {
      door_ready_ = true;
    } else {
      links_[static_cast<std::size_t>(owner)]->own_ready = true;
    }
  }
  read_door(sink);
  for (auto& link : links_) {
    if (link && link->own_ready) read_own(*link, sink);
  }
  bool more = false;
  for (auto& link : links_) {
    if (!link || link->lost) continue;
    if (link->needed && !link->own && link->route.empty()) connect(*link);
    flush(*link);
    more |= link->own_ready;
  }
  more |= door_ready_;
  report_ends(sink);
  watch_->tick(suspicious() || expects_last_words());
  // In the end, so that what it calls finds nothing half done.
  for (std::uint64_t id : std::exchange(copied_, {})) sink.sent(id);
  return moved_ || more;
}

void MessageLinks::connect(Link& link) {
  link.own = std::make_unique<ZmqSocket>(ZmqSocket::Kind::dealer);
  watch_->add(link.own->data_descriptor(), link.rank);
  watch_->add(link.own->monitor_descriptor(), link.rank);
  link.own_ready = true;  // descriptors say nothing before somebody has tried to read
  link.own->connect(link.endpoint, link.key);
  link.own->post({}, control("hello", {{"rank", group_.rank}, {"token", link.token}}));
  group_.log.info("connecting to rank " + std::to_string(link.rank) + " at " + link.endpoint +
                  " for messages");
}

void MessageLinks::disconnect(Link& link, Milliseconds linger) noexcept {
  if (!link.own || link.own->closed()) return;
  if (watch_) {
    watch_->remove(link.own->data_descriptor());
    watch_->remove(link.own->monitor_descriptor());
  }
  link.own->close(linger);
  lent_.push_back(link.own->borrowed());
}

/// Always the same one for as long as it leads anywhere, as messages must not overtake each other.
std::optional<MessagePath> MessageLinks::path_to(Link& link) {
  if (link.own) return link.own_ends ? std::nullopt : std::optional(MessagePath{link.own.get(), {}});
  if (link.route.empty() || link.route_ends) return std::nullopt;
  return MessagePath{door_.get(), link.route};
}

void MessageLinks::flush(Link& link) {
  const auto path = path_to(link);
  if (!path || !link.peer.flush(*path)) return;
  moved_ = true;
  // Sending takes notice of what has come, and the descriptors say it no more.
  if (path->socket->readable()) (link.own ? link.own_ready : door_ready_) = true;
}

void MessageLinks::read_door(MessageSink& sink) {
  const bool probe_now = suspicious() && Clock::now() >= next_probe_;
  if (!door_ready_ && !probe_now) return;
  if (door_->hung_up()) {
    // It is not told whose connection has ended; perhaps only a stranger's.
    for (auto& link : links_) {
      if (link && !link->route.empty() && !link->route_over) suspect(*link);
    }
  }
  do {
    while (auto received = door_->receive()) {
      moved_ = true;
      const auto known = routes_.find(received->route);
      if (known == routes_.end()) {
        greet(*received);
      } else {
        understand(*links_[static_cast<std::size_t>(known->second)], std::move(*received), sink);
      }
      if (read_ >= kCopyAtOnce) {
        door_ready_ = true;
        return;
      }
    }
    // All that a peer said before its end has been read by now.
    for (auto& link : links_) {
      if (link) link->route_over = link->route_ends;
    }
  } while (probe());
  door_ready_ = false;
}

/// Opens the door to a rank of the group. Anything else that comes first on a connection is of no rank of
/// ours.
void MessageLinks::greet(const ZmqSocket::Received& received) {
  try {
    const Value message =
        msgpack::decode({reinterpret_cast<const char*>(received.control.data()), received.control.size()});
    const auto rank = static_cast<std::size_t>(message.at("rank").as_int(0, group_.size - 1));
    Link* link = links_[rank].get();
    if (message.at("v") == Value(kVersion) && message.at("t") == Value("hello") && link &&
        message.at("token") == Value(token_) && !received.payload && link->route.empty() && !link->lost) {
      link->route = received.route;
      routes_[received.route] = link->rank;
      // It may have ended before we knew whose it was.
      suspect(*link);
      return;
    }
  } catch (const Error&) {
    // Not even a message.
  }
  if (!std::exchange(warned_, true)) {
    group_.log.warn("somebody who is no rank of the group connected to where rank " +
                    std::to_string(group_.rank) + " listens for messages, and was not let in");
  }
}

void MessageLinks::suspect(Link& link) {
  link.suspect = true;
  link.pings = 0;
  link.earlier_pongs = link.pongs_due;
}

bool MessageLinks::suspicious() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](auto& link) { return link && link->suspect && !link->lost; });
}

/// Whether a peer's door has closed that has not spoken to us yet.
bool MessageLinks::expects_last_words() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](auto& link) { return link && link->own_over && link->route.empty() && !link->lost; });
}

/// Asks those whose connection to our door may have ended. True if one has: then what it said before is there
/// to be read.
bool MessageLinks::probe() {
  bool ended = false;
  const bool all = Clock::now() >= next_probe_;
  for (auto& link : links_) {
    if (!link || !link->suspect || link->lost || (!all && link->pings >= kPings)) continue;
    ++link->pings;
    const ZmqSocket::Sent sent = door_->post(link->route, control("ping"));
    link->pongs_due += sent == ZmqSocket::Sent::yes;
    if (sent != ZmqSocket::Sent::unreachable) continue;
    link->suspect = false;
    link->route_ends = ended = true;
  }
  if (all) next_probe_ = Clock::now() + kProbePeriod;
  return ended;
}

void MessageLinks::read_own(Link& link, MessageSink& sink) {
  // Asked first: what the peer said before its end was received before its end was reported.
  link.own_ends |= link.own->hung_up();
  while (auto received = link.own->receive()) {
    moved_ = true;
    understand(link, std::move(*received), sink);
    if (read_ >= kCopyAtOnce) return;
  }
  link.own_ready = false;
  if (!link.own_ends || link.own_over) return;
  link.own_over = moved_ = true;
  link.own_end = Clock::now();
  // Or it would connect anew, to whoever listens there now.
  disconnect(link, Milliseconds(0));
  // There may be a second connection, by which the peer spoke to us, and which tells when it has ended.
  if (!link.route.empty() && !link.route_ends) suspect(link);
}

void MessageLinks::understand(Link& link, ZmqSocket::Received received, MessageSink& sink) {
  if (link.lost || link.left) return;
  if (received.excess) throw link.peer.breach("sent a message of more than two frames");
  if (received.payload) read_ += received.payload->size();
  const Value message = read_control(received.control, link.rank, group_.rank);
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
    // It lives, but does not get what we say.
    if (link.own_over) link.route_ends = link.route_over = true;
  } else if (type == "left") {
    link.left = true;
  } else if (type == "fail") {
    link.told = true;
    throw read_failure(message);
  } else {
    link.peer.understand(message, received.payload, sink);
  }
}

void MessageLinks::report_ends(MessageSink& sink) {
  for (auto& link : links_) {
    if (!link || link->lost) continue;
    const bool own_over = link->own && link->own_over;
    const bool over = link->route.empty() ? own_over && Clock::now() >= link->own_end + kLastWords
                                          : link->route_over && (own_over || !link->own);
    if (!link->left && !over) continue;
    link->lost = moved_ = true;
    sink.lost(link->rank, link->left ? ErrorCode::peer_left : ErrorCode::peer_dead, end_text(*link));
  }
}

std::string MessageLinks::end_text(const Link& link) const {
  const std::string us = "rank " + std::to_string(group_.rank);
  const std::string them = "rank " + std::to_string(link.rank);
  if (link.left) return them + " left group " + group_.name;
  if (link.own && link.own->refused()) {
    return us + " could not connect to " + them + " (" + link.endpoint +
           "), which has left or died unless the network is at fault,";
  }
  return "the connection of " + us + " to " + them + " (" + link.endpoint + ") ended";
}

void MessageLinks::stop() noexcept {
  if (std::exchange(stopped_, true)) return;
  try {
    // Whoever has connected and was not heard yet is told as well.
    while (auto received = door_->receive()) {
      if (!routes_.contains(received->route)) greet(*received);
    }
    const bool failed = group_.failure().happened();
    if (!failed) deliver_rest();
    for (auto& link : links_) {
      if (link && failed && !link->told) say_failure(*link);
      if (link && !failed && !link->lost) say_left(*link);
    }
  } catch (const std::exception&) {
    // The peers see the ends of the connections instead.
  }
  for (auto& link : links_) {
    if (link) disconnect(*link, kLinger);
  }
  watch_.reset();
  lent_.push_back(door_->borrowed());
  door_->close(kLinger);
  const Deadline patience = Deadline::in(Milliseconds(600));
  const auto reading = [&] {
    return std::any_of(lent_.begin(), lent_.end(),
                       [](const auto& borrowed) { return borrowed->count() > 0; });
  };
  while (reading() && !patience.passed()) usleep(100);
  if (reading()) group_.log.warn("a link between hosts still holds memory of a message");
}

/// Short messages are done once they are copied, so a rank that leaves sees to it that they get away.
void MessageLinks::deliver_rest() {
  const Deadline patience = Deadline::in(kLinger);
  while (true) {
    bool waiting = false;
    for (auto& link : links_) {
      if (!link || link->lost || !link->peer.waiting()) continue;
      if (!link->own && link->route.empty()) connect(*link);
      flush(*link);
      waiting |= link->peer.waiting() && path_to(*link).has_value();
    }
    if (!waiting || patience.passed()) return;
    usleep(200);
  }
}

/// On every connection there is: one may be broken.
void MessageLinks::say_failure(Link& link) {
  const std::string last = control("fail", failure_fields(group_.failure().error()));
  if (link.own && !link.own->closed()) link.own->post({}, last);
  if (!link.route.empty() && !link.route_over) door_->post(link.route, last);
}

/// Behind all that was said before.
void MessageLinks::say_left(Link& link) {
  if (const auto path = path_to(link)) path->socket->post(path->route, control("left"));
}

}  // namespace vccl
