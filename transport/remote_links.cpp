#include "transport/remote_links.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include "transport/control.hpp"
#include "transport/host.hpp"
#include "transport/msgpack.hpp"

namespace vccl {
namespace {

using msgpack::Map;
using msgpack::Value;

constexpr int kVersion = 1;
constexpr int kYields = 50;  // about what a small message takes on one machine
constexpr Milliseconds kSlice{50};
constexpr Milliseconds kLinger{300};

std::string link_key(int rank) {
  return "link/" + std::to_string(rank);
}

Error breach(const std::string& what) {
  return Error(ErrorCode::protocol, what);
}

}  // namespace

RemoteLinks::~RemoteLinks() {
  close();
}

void RemoteLinks::connect(Store& store, int left, int right, const std::string& address) {
  if (left >= 0) {
    left_ = std::make_unique<RemoteLink>(RemoteLink::Side::left, left);
    left_->endpoint = left_->socket.bind(address);
    left_->token = random_hex(16);
    store.set(link_key(group_.rank), msgpack::encode(Map{{"v", kVersion},
                                                         {"endpoint", left_->endpoint},
                                                         {"key", left_->socket.public_key()},
                                                         {"token", left_->token}}));
    group_.log.info("listening for rank " + std::to_string(left) + " on " + left_->endpoint);
  }
  if (right >= 0) {
    right_ = std::make_unique<RemoteLink>(RemoteLink::Side::right, right);
    const Value record = msgpack::decode(store.get(link_key(right), group_.deadline));
    store.remove(link_key(right));
    right_->endpoint = record.at("endpoint").as_string();
    right_->socket.connect(right_->endpoint, record.at("key").as_string());
    send(*right_, control("hello", {{"token", record.at("token")}}));
    group_.log.info("connecting to rank " + std::to_string(right) + " at " + right_->endpoint);
  }
  if (left_) {
    until([&] { return left_->greeted; }, *left_, "to connect in");
    send(*left_, control("hello"));
  }
  if (right_) until([&] { return right_->greeted; }, *right_, "to answer in");
}

void RemoteLinks::send(RemoteLink& link, const std::string& control) {
  std::lock_guard lock(mutex_);
  if (!link.socket.send(control)) link.gone = true;
}

void RemoteLinks::send(RemoteLink& link, const std::string& control, const std::byte* data,
                       std::size_t size) {
  std::lock_guard lock(mutex_);
  if (!link.socket.send(control, data, size)) link.gone = true;
}

void RemoteLinks::begin() {
  Map fields = signature_fields(group_.signature);
  fields["seq"] = group_.sequence.load(std::memory_order_relaxed);
  const std::string message = control("begin", std::move(fields));
  if (left_) send(*left_, message);
  if (right_) send(*right_, message);
  // A neighbour that was faster has told us already, and its first block may be here too: nobody would look
  // at what it called before taking that block for ours.
  std::lock_guard lock(mutex_);
  if (left_) compare_begins(*left_);
  if (right_) compare_begins(*right_);
}

void RemoteLinks::match() {
  const std::uint64_t number = group_.sequence.load(std::memory_order_relaxed);
  for (RemoteLink* link : {left_.get(), right_.get()}) {
    if (link) until([&] { return link->compared == number; }, *link, "to begin");
  }
}

void RemoteLinks::slow(FunctionRef<bool()> ready, RemoteLink& link, const char* what) {
  for (int attempt = 0; !ready_now(ready, link, what); ++attempt) {
    if (attempt < kYields) {
      sched_yield();
    } else {
      const auto left = std::chrono::ceil<Milliseconds>(group_.deadline.at - Clock::now());
      poll(std::clamp(left, Milliseconds(0), kSlice));
    }
  }
}

bool RemoteLinks::ready_now(FunctionRef<bool()> ready, RemoteLink& link, const char* what) {
  std::optional<Error> wrong;
  bool done, left, gone;
  {
    std::lock_guard lock(mutex_);
    wrong = receive_all();
    done = ready();
    left = link.left;
    gone = link.gone;
  }
  // Outside of the mutex, because failing sends to both neighbours.
  if (wrong) group_.raise(wrong->code(), wrong->what());
  if (group_.failure().happened()) spread_failure();
  group_.check();
  if (done) return true;
  const std::string us = "rank " + std::to_string(group_.rank);
  const std::string them = "rank " + std::to_string(link.peer);
  if (left) {
    group_.raise(ErrorCode::peer_left, them + " left group " + group_.name + " while " + us +
                                           " waited for it " + what + " " + group_.operation_text());
  }
  if (gone) {
    group_.raise(ErrorCode::peer_dead, "the connection of " + us + " to " + them + " (" + link.endpoint +
                                           ") ended while it waited for it " + what + " " +
                                           group_.operation_text() +
                                           ": the process or its host died, or the network failed");
  }
  if (group_.deadline.passed()) {
    group_.raise(ErrorCode::timeout, us + " waited " + duration_text(group_.deadline.length) + " for " +
                                         them + " on another host (" + link.endpoint + ") " + what + " " +
                                         group_.operation_text() +
                                         ". Look for a rank that is stuck or slow, or raise the timeout; "
                                         "VCCL_SOCKET_IFNAME chooses the network interface.");
  }
  return false;
}

void RemoteLinks::poll(Milliseconds time) {
  std::lock_guard lock(mutex_);
  ZmqPollItem items[4];
  int count = 0;
  for (RemoteLink* link : {left_.get(), right_.get()}) {
    if (!link || link->socket.closed() || link->gone) continue;
    items[count++] = link->socket.data_item();
    items[count++] = link->socket.monitor_item();
  }
  if (count) zmq_api().poll(items, count, static_cast<long>(time.count()));
}

std::optional<Error> RemoteLinks::receive_all() {
  std::optional<Error> wrong;
  for (RemoteLink* link : {left_.get(), right_.get()}) {
    if (!link) continue;
    auto found = receive_from(*link);
    if (!wrong) wrong = std::move(found);
  }
  return wrong;
}

std::optional<Error> RemoteLinks::receive_from(RemoteLink& link) {
  try {
    // Asked first: what the peer said before its end was received before its end was reported.
    const bool gone = link.socket.disconnected();
    while (auto received = link.socket.receive()) understand(link, std::move(*received));
    link.gone |= gone;
    compare_begins(link);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

void RemoteLinks::understand(RemoteLink& link, ZmqSocket::Received received) {
  const Value message = read_control(received.control, link.peer, group_.rank);
  const std::string them = "rank " + std::to_string(link.peer);
  const std::string& type = message.at("t").as_string();
  const bool from_left = link.side == RemoteLink::Side::left;
  if (type == "hello") {
    if (from_left && message.at("token").as_string() != link.token)
      throw breach(them + " gave a wrong token");
    link.greeted = true;
  } else if (!link.greeted) {
    throw breach(them + " did not greet");
  } else if (type == "begin") {
    link.begins.emplace_back(message.at("seq").as_uint(), read_signature(message));
    if (link.begins.size() > 2) throw breach(them + " began operations without waiting for their ends");
  } else if (type == "block" && from_left && received.payload) {
    if (message.at("n").as_uint() != ++link.received || link.blocks.size() >= Communicator::kSlots) {
      throw breach(them + " sent a block that is not the next");
    }
    link.blocks.push_back({message.at("seq").as_uint(), std::move(*received.payload)});
  } else if (type == "release" && !from_left) {
    const std::uint64_t count = message.at("n").as_uint();
    if (count <= link.released || count > link.posted)
      throw breach(them + " released a block that it has not");
    link.released = count;
  } else if (type == "fail") {
    link.told = true;
    throw read_failure(message);
  } else if (type == "left") {
    link.left = true;
  } else {
    throw breach(them + " sent a message of type \"" + type.substr(0, 32) + "\"");
  }
}

void RemoteLinks::compare_begins(RemoteLink& link) {
  const std::uint64_t current = group_.sequence.load(std::memory_order_relaxed);
  if (link.begins.empty() || link.begins.front().first > current) return;
  const auto [number, theirs] = link.begins.front();
  link.begins.pop_front();
  if (number != current || number != link.compared + 1) {
    throw breach("rank " + std::to_string(link.peer) + " is at operation " + std::to_string(number) +
                 ", rank " + std::to_string(group_.rank) + " at operation " + std::to_string(current));
  }
  link.compared = number;
  if (theirs == group_.signature) return;
  // The lower rank first, as its own side says it too.
  throw Error(ErrorCode::mismatch,
              group_.rank < link.peer
                  ? Gate::mismatch_text(group_, group_.rank, group_.signature, link.peer, theirs)
                  : Gate::mismatch_text(group_, link.peer, theirs, group_.rank, group_.signature));
}

void RemoteLinks::pump() noexcept {
  std::optional<Error> wrong;
  {
    std::lock_guard lock(mutex_);
    wrong = receive_all();
  }
  if (wrong) group_.fail(wrong->code(), wrong->what());
  if (group_.failure().happened()) spread_failure();
}

void RemoteLinks::spread_failure() noexcept {
  // Whoever holds the mutex looks at the failure when it lets go, at the latest after one slice.
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;
  for (RemoteLink* link : {left_.get(), right_.get()}) {
    if (link) send_failure(*link);
  }
}

void RemoteLinks::send_failure(RemoteLink& link) {
  if (link.told || !link.greeted || link.socket.closed()) return;
  link.told = true;
  try {
    link.socket.send(control("fail", failure_fields(group_.failure().error())));
  } catch (const std::exception&) {
    // The peer sees the end of the connection instead.
  }
}

void RemoteLinks::close() noexcept {
  std::lock_guard lock(mutex_);
  const bool failed = group_.failure().happened();
  std::vector<std::shared_ptr<Borrowed>> lent;
  for (RemoteLink* link : {left_.get(), right_.get()}) {
    if (!link || link->socket.closed()) continue;
    if (failed) send_failure(*link);
    try {
      if (!failed && link->greeted) link->socket.send(control("left"));
    } catch (const std::exception&) {
      // It has gone already.
    }
    link->socket.close(kLinger);
    lent.push_back(link->socket.borrowed());
  }
  const Deadline patience = Deadline::in(Milliseconds(1000));
  const auto reading = [&] {
    return std::any_of(lent.begin(), lent.end(), [](const auto& borrowed) { return borrowed->count() > 0; });
  };
  while (reading() && !patience.passed()) usleep(100);
  if (reading()) group_.log.warn("a link between hosts still holds memory of the last operation");
}

}  // namespace vccl
