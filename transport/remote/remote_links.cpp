#include "transport/remote/remote_links.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include "transport/host/machine.hpp"
#include "transport/interruption.hpp"
#include "transport/remote/control.hpp"
#include "transport/support/msgpack.hpp"
#include "transport/support/text.hpp"

namespace vccl {
namespace {

using msgpack::Map;
using msgpack::Value;

constexpr int kYields = 50;  // about the time that a small message takes on one machine
constexpr Milliseconds kSlice{50};
constexpr Milliseconds kLinger{300};
constexpr Milliseconds kLongGone{1'000};

std::string link_key(int rank) {
  return "link/" + std::to_string(rank);
}

void lose(RemoteLink& link) {
  if (!std::exchange(link.gone, true)) link.gone_since = Clock::now();
}

Error breach(const std::string& what) {
  return Error(ErrorCode::protocol, what);
}

}  // namespace

RemoteLinks::~RemoteLinks() {
  close();
}

void RemoteLinks::connect(Meeting& meeting, int left, int right, const std::string& address) {
  if (left >= 0) {
    left_ = std::make_unique<RemoteLink>(RemoteLink::Side::left, left);
    left_->endpoint = left_->socket.bind(address, 1, group_.log);
    left_->token = random_hex(16);
    meeting.set(link_key(group_.rank), encode_record({{"endpoint", left_->endpoint},
                                                      {"key", left_->socket.public_key()},
                                                      {"token", left_->token}}));
    group_.log.info("listening for rank " + std::to_string(left) + " on " + left_->endpoint);
  }
  if (right >= 0) {
    right_ = std::make_unique<RemoteLink>(RemoteLink::Side::right, right);
    const Value record =
        read_record(meeting.await(right, link_key(right), "to tell where it listens"), right);
    meeting.remove(link_key(right));
    right_->endpoint = record.at("endpoint").as_string();
    right_->socket.connect(right_->endpoint, record.at("key").as_string());
    send(*right_, control_message("hello", {{"token", record.at("token")}}));
    group_.log.info("connecting to rank " + std::to_string(right) + " at " + right_->endpoint);
  }
  if (left_) {
    until([&] { return left_->greeted; }, *left_, "to connect in");
    left_->socket.shut();
    send(*left_, control_message("hello"));
  }
  if (right_) until([&] { return right_->greeted; }, *right_, "to answer in");
}

void RemoteLinks::send(RemoteLink& link, const std::string& control) {
  std::lock_guard lock(mutex_);
  if (!link.socket.send(control)) lose(link);
}

void RemoteLinks::send(RemoteLink& link, const std::string& control, const std::byte* data,
                       std::size_t size) {
  std::lock_guard lock(mutex_);
  if (!link.socket.send(control, data, size)) lose(link);
}

void RemoteLinks::begin() {
  Map fields = signature_fields(operation_.signature());
  fields["seq"] = operation_.sequence();
  const std::string message = control_message("begin", std::move(fields));
  if (left_) send(*left_, message);
  if (right_) send(*right_, message);
  // The announcement of a faster neighbour may have come already, and its first block too. Compare now,
  // because otherwise that block could be taken before the signatures are compared.
  std::lock_guard lock(mutex_);
  if (left_) compare_begins(*left_);
  if (right_) compare_begins(*right_);
}

void RemoteLinks::match() {
  const std::uint64_t number = operation_.sequence();
  for (RemoteLink* link : {left_.get(), right_.get()}) {
    if (link) until([&] { return link->compared == number; }, *link, "to begin");
  }
}

void RemoteLinks::slow(FunctionRef<bool()> ready, RemoteLink& link, const char* what) {
  auto next_interruption = Clock::now() + kInterruptionPeriod;
  for (int attempt = 0; !ready_now(ready, link, what); ++attempt) {
    if (attempt < kYields) {
      sched_yield();
    } else {
      if (Clock::now() >= next_interruption) {
        next_interruption = Clock::now() + kInterruptionPeriod;
        check_interruption(link, what);
      }
      failures_.check_meeting();
      const auto left = std::chrono::ceil<Milliseconds>(operation_.deadline().at - Clock::now());
      poll(std::clamp(left, Milliseconds(0), kSlice));
    }
  }
}

void RemoteLinks::check_interruption(const RemoteLink& link, const char* what) {
  const std::string by = interruption();
  if (!by.empty())
    failures_.raise_interrupted(by,
                                "rank " + std::to_string(link.peer) + " " + what + " " + operation_.text());
}

bool RemoteLinks::ready_now(FunctionRef<bool()> ready, RemoteLink& link, const char* what) {
  std::optional<Error> wrong;
  bool done, left;
  const RemoteLink* gone;
  {
    std::lock_guard lock(mutex_);
    wrong = receive_all();
    done = ready();
    left = link.left;
    gone = link.gone ? &link : long_gone();
  }
  // A peer that gave up in the meeting may break the protocol or close the connection by that. The peer, or
  // the rank that gave up first, has announced the reason.
  if ((wrong || left || gone) && !done) failures_.await_reason();
  // This happens without the mutex, because failing sends to both neighbours.
  if (wrong) failures_.raise(wrong->code(), wrong->what());
  if (failures_.happened()) spread_failure();
  failures_.check();
  if (done) return true;
  const std::string us = "rank " + std::to_string(group_.rank);
  const std::string them = "rank " + std::to_string(link.peer);
  if (left) {
    failures_.raise_for_end(ErrorCode::peer_left, failures_.left_text(link.peer, link.why) + " while " + us +
                                                      " waited for it " + what + " " + operation_.text());
  }
  if (gone) {
    const std::string whom = gone == &link ? "it" : them;
    failures_.raise_for_end(ErrorCode::peer_dead,
                            gone_text(*gone, whom + " " + what + " " + operation_.text()));
  }
  if (operation_.deadline().passed()) {
    failures_.raise(ErrorCode::timeout, us + " waited " + duration_text(operation_.deadline().length) +
                                            " for " + them + " on another host (" + link.endpoint + ") " +
                                            what + " " + operation_.text() +
                                            ". Look for a rank that is stuck or slow, or raise the timeout; "
                                            "VCCL_SOCKET_IFNAME chooses the network interface.");
  }
  return false;
}

const RemoteLink* RemoteLinks::long_gone() const {
  for (const RemoteLink* link : {left_.get(), right_.get()}) {
    if (link && link->greeted && link->gone && !link->left && Clock::now() - link->gone_since >= kLongGone)
      return link;
  }
  return nullptr;
}

std::string RemoteLinks::gone_text(const RemoteLink& link, const std::string& wait) const {
  return "the connection of rank " + std::to_string(group_.rank) + " to rank " + std::to_string(link.peer) +
         " (" + link.endpoint + ") ended while it waited for " + wait +
         ": the process or its host died, or the network failed";
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
    // This is read first: libzmq reports the end of a connection after it has received what the peer sent
    // before.
    const bool gone = link.socket.disconnected();
    while (auto received = link.socket.receive()) understand(link, std::move(*received));
    if (gone) lose(link);
    compare_begins(link);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::protocol || link.told) return error;
    return Error(error.code(), "rank " + std::to_string(link.peer) + " sent rank " +
                                   std::to_string(group_.rank) + " what no rank sends, in " +
                                   operation_.text() + ": " + error.what());
  }
  return std::nullopt;
}

void RemoteLinks::understand(RemoteLink& link, ZmqSocket::Received received) {
  const Value message = read_control(received.control, link.peer);
  const std::string& type = message.at("t").as_string();
  const bool from_left = link.side == RemoteLink::Side::left;
  if (type == "hello") {
    if (from_left && message.at("token").as_string() != link.token) throw breach("a wrong token");
    link.greeted = true;
  } else if (!link.greeted) {
    throw breach("something before its greeting");
  } else if (type == "begin") {
    link.begins.emplace_back(message.at("seq").as_uint(), read_signature(message));
    if (link.begins.size() > 2) throw breach("the beginnings of operations without waiting for their ends");
  } else if (type == "block" && from_left && received.payload) {
    if (message.at("n").as_uint() != ++link.received || link.blocks.size() >= Communicator::kSlots) {
      throw breach("a block that is not the next");
    }
    link.blocks.push_back({message.at("seq").as_uint(), std::move(*received.payload)});
  } else if (type == "release" && !from_left) {
    const std::uint64_t count = message.at("n").as_uint();
    if (count <= link.released || count > link.posted) throw breach("the release of a block that it has not");
    link.released = count;
  } else if (type == "fail") {
    const Error failure = read_failure(message);
    link.told = true;
    throw failure;
  } else if (type == "left") {
    link.left = true;
    link.why = read_left(message);
  } else {
    throw breach("a message of type \"" + std::string(cut_text(type, 32)) + "\"");
  }
}

void RemoteLinks::compare_begins(RemoteLink& link) {
  const std::uint64_t current = operation_.sequence();
  if (link.begins.empty() || link.begins.front().first > current) return;
  const auto [number, theirs] = link.begins.front();
  link.begins.pop_front();
  if (number != current || number != link.compared + 1) {
    throw breach("the beginning of operation " + std::to_string(number) + " where that of operation " +
                 std::to_string(link.compared + 1) + " comes next");
  }
  link.compared = number;
  if (theirs == operation_.signature()) return;
  // The lower rank is named first, so that both ranks throw the same text.
  throw Error(ErrorCode::mismatch,
              group_.rank < link.peer
                  ? operation_.mismatch_text(group_.rank, operation_.signature(), link.peer, theirs)
                  : operation_.mismatch_text(link.peer, theirs, group_.rank, operation_.signature()));
}

void RemoteLinks::pump() noexcept {
  std::optional<Error> wrong;
  const RemoteLink* gone;
  {
    std::lock_guard lock(mutex_);
    wrong = receive_all();
    gone = long_gone();
  }
  if (wrong) {
    failures_.fail(wrong->code(), wrong->what());
  } else if (gone) {
    failures_.fail_for_end(ErrorCode::peer_dead,
                           gone_text(*gone, "a rank of its own host in " + operation_.text()));
  }
  if (failures_.happened()) spread_failure();
}

void RemoteLinks::spread_failure() noexcept {
  // The thread that holds the mutex checks for the failure when it releases the mutex, at the latest after
  // one slice.
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
    link.socket.send(control_message("fail", failure_fields(failures_.error())));
  } catch (const std::exception&) {
    // The peer notices the end of the connection instead.
  }
}

void RemoteLinks::close() noexcept {
  std::lock_guard lock(mutex_);
  const bool failed = failures_.happened();
  std::vector<std::shared_ptr<Borrowed>> lent;
  for (RemoteLink* link : {left_.get(), right_.get()}) {
    if (!link || link->socket.closed()) continue;
    if (failed) send_failure(*link);
    try {
      if (!failed && link->greeted)
        link->socket.send(control_message("left", left_fields(group_.own_line().leave_reason.read())));
    } catch (const std::exception&) {
      // The peer has gone already.
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
