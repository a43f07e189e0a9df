#include "transport/remote/peer_connection.hpp"

#include <unistd.h>

#include <algorithm>

#include "base/text.hpp"
#include "transport/host/machine.hpp"
#include "transport/support/error_text.hpp"

namespace vccl {

using msgpack::Map;
using msgpack::Value;

constexpr std::size_t kMaxFailureText = 4096;  // a longer text is cut

ListenerRecord ListenerRecord::listen(ZmqSocket& socket, const std::string& address, std::size_t ranks,
                                      const Log& log) {
  const std::string endpoint = socket.bind(address, ranks, log);
  return {endpoint, socket.public_key(), random_hex(16)};
}

ListenerRecord ListenerRecord::read(const Value& record) {
  return {record.at("endpoint").as_string(), record.at("key").as_string(), record.at("token").as_string()};
}

std::string ListenerRecord::encode(Map fields) const {
  fields.insert({{"endpoint", endpoint}, {"key", key}, {"token", token}});
  return encode_record(std::move(fields));
}

int ListenerRecord::read_hello(const Value& message, int size) const {
  if (message.at("token").as_string() != token) throw Error(ErrorCode::protocol, "a wrong token");
  return static_cast<int>(message.at("rank").as_int(0, size - 1));
}

void PeerConnection::connect(ZmqSocket::Kind kind, Map fields) {
  socket = std::make_unique<ZmqSocket>(kind);
  socket->connect(listener.endpoint, listener.key);
  socket->post({}, hello(std::move(fields)));
  group_.log.info(base::text("connecting to rank ", rank, " at ", listener.endpoint));
}

std::string PeerConnection::hello(Map fields) const {
  fields.insert({{"rank", group_.rank}, {"token", listener.token}});
  return control_message("hello", std::move(fields));
}

void PeerConnection::read_hello(const Value& message) {
  if (listener.read_hello(message, group_.size) != rank) {
    throw Error(ErrorCode::protocol, "the hello of another rank");
  }
  open();
}

std::string PeerConnection::end_text() const {
  if (is(State::left)) return failures_.left_text(rank, why_);
  const std::string us = base::text("rank ", group_.rank);
  const std::string them = base::text("rank ", rank, " (", listener.endpoint, ")");
  if (socket && socket->refused()) {
    return base::text(us, " could not connect to ", them,
                      ", which has left or died unless the network is at fault,");
  }
  return base::text("the connection of ", us, " to ", them, " ended");
}

bool PeerConnection::read_last_words(const Value& message) {
  const std::string& type = message.at("t").as_string();
  if (type == "fail") {
    const auto code = message.at("code").as_int(0, static_cast<int>(ErrorCode::system));
    const std::string text(cut_text(message.at("text").as_string(), kMaxFailureText));
    state_ = State::told;
    throw Error(static_cast<ErrorCode>(code), text);
  }
  if (type != "left") return false;
  why_ = valid_text(cut_text(message.at("why").as_string(), LeaveReason::kMaxText));
  state_ = State::left;
  return true;
}

std::optional<std::string> PeerConnection::take_last_words(bool failed) {
  if (!is(State::open)) return std::nullopt;
  state_ = State::told;
  if (!failed) return control_message("left", {{"why", group_.own_line().leave_reason.read()}});
  const Error failure = failures_.error();
  return control_message("fail", {{"code", static_cast<int>(failure.code())}, {"text", failure.what()}});
}

void ClosedSockets::close(ZmqSocket& socket, Milliseconds linger) noexcept {
  if (socket.closed()) return;
  socket.close(linger);
  lent_.push_back(socket.borrowed());
}

void ClosedSockets::wait(Milliseconds patience, const Log& log) const noexcept {
  const Deadline deadline = Deadline::in(patience);
  const auto reading = [&] {
    return std::any_of(lent_.begin(), lent_.end(),
                       [](const auto& borrowed) { return borrowed->count() > 0; });
  };
  while (reading() && !deadline.passed()) usleep(100);
  if (reading()) log.warn("a closed connection to another host still reads memory of this rank");
}

}  // namespace vccl
