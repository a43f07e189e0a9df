#include "transport/connections/peer_connection.hpp"

#include <unistd.h>

#include <algorithm>

#include "base/periods.hpp"
#include "base/text.hpp"
#include "transport/crypto/wipe.hpp"
#include "transport/support/error_text.hpp"
#include "transport/system/machine.hpp"

namespace vccl {

using msgpack::Map;
using msgpack::Value;

constexpr std::size_t kMaxFailureText = 4096;  // a longer text is cut

namespace {

std::string read_host(const Value& map) {
  constexpr std::size_t kMaxHost = 64;
  return valid_text(cut_text(map.at("host").as_string(), kMaxHost));
}

std::string place_text(const std::string& address, const std::string& host) {
  return base::text(" (", address, ", host ", host, ")");
}

}  // namespace

ListenerRecord ListenerRecord::listen(ZmqSocket& socket, const LinkSettings& settings, std::size_t ranks,
                                      const Log& log) {
  const std::string endpoint = socket.bind(settings.address, settings.ports, ranks, log);
  return {endpoint, socket.public_key(), random_hex(16), settings.host};
}

ListenerRecord ListenerRecord::read(const Value& record) {
  return {record.at("endpoint").as_string(), record.at("key").as_string(), record.at("token").as_string(),
          read_host(record)};
}

std::string ListenerRecord::encode(Map fields) const {
  fields.insert({{"endpoint", endpoint}, {"key", key}, {"token", token}, {"host", host}});
  return encode_record(std::move(fields));
}

int ListenerRecord::read_hello(const Value& message, int size) const {
  if (message.at("token").as_string() != token) throw Error(ErrorCode::protocol, "a wrong token");
  return static_cast<int>(message.at("rank").as_int(0, size - 1));
}

void PeerConnection::learn(const ListenerRecord& record) {
  listener = record;
  peer_place_ = place_text(record.endpoint, record.host);
}

void PeerConnection::connect(ZmqSocket::Kind kind, Map fields) {
  kind_ = kind;
  connect_by_ = Clock::now() + settings.patience();
  first_hello_ = hello(std::move(fields));
  dial(first_hello_);
  if (kind != ZmqSocket::Kind::pair) wipe(first_hello_);
  group_.log.info(base::text("connecting to ", group_.rank_text(rank), " at ", listener.endpoint));
}

// libzmq would connect anew by itself, without a hello, and send there what the last connection did not take.
void PeerConnection::dial(const std::string& hello) {
  std::shared_ptr<Borrowed> borrowed;
  if (socket) {
    socket->close(Milliseconds(0));
    borrowed = socket->borrowed();
  }
  dialled_ = Clock::now();
  auto fresh = std::make_unique<ZmqSocket>(kind_, settings.silence, std::move(borrowed));
  fresh->connect(listener.endpoint, listener.key, true);
  fresh->post({}, hello);
  socket = std::move(fresh);
}

void PeerConnection::connect_again(Map fields) {
  connect_by_ = {};
  never_made_ = !socket->connected() && (never_made_ || !made_again_);
  made_again_ = true;
  dial(hello(std::move(fields)));
}

void PeerConnection::give_up_again(std::optional<Milliseconds> tried) {
  made_again_ = true;
  tried_again_ = tried;
  end.finish();
}

void PeerConnection::give_up_after(int cuts, std::optional<Milliseconds> tried) {
  cuts_ = cuts;
  give_up_again(tried);
}

std::string PeerConnection::hello(Map fields) const {
  fields.insert({{"rank", group_.rank}, {"token", listener.token}, {"host", settings.host}});
  return control_message("hello", std::move(fields));
}

void PeerConnection::read_hello(const Value& message, const std::string& address) {
  if (listener.read_hello(message, group_.size) != rank) {
    throw Error(ErrorCode::protocol, "the hello of another rank");
  }
  peer_place_ = place_text(base::text("tcp://", address), read_host(message));
  wipe(first_hello_);
  open();
}

bool PeerConnection::connecting() {
  if (connect_by_ == Clock::time_point() || end.over() || socket->connected()) return false;
  ever_refused_ |= socket->refused();
  if (Clock::now() < connect_by_) {
    if (socket->refused() && !first_hello_.empty() && Clock::now() - dialled_ >= base::kRetryPeriod)
      dial(first_hello_);
    return true;
  }
  gave_up_ = true;
  end.finish();
  return false;
}

std::string PeerConnection::peer_text() const {
  return base::text(group_.rank_text(rank), peer_place_);
}

std::string PeerConnection::end_text() const {
  if (is(State::left)) return failures_.left_text(rank, why_);
  const std::string us = group_.own_text();
  if (gave_up_) {
    return base::text(us, " could not connect to ", peer_text(), " within ",
                      duration_text(settings.patience()), " (",
                      ever_refused_ ? "it was refused" : "nobody answered", "; ", kFirewall, ")");
  }
  if (cuts_ > 0) {
    return base::text(us, " could not connect to ", peer_text(),
                      tried_again_ ? base::text(" within ", duration_text(*tried_again_)) : "",
                      " (the connection was cut ", cuts_, " times; ", kFirewall, ")");
  }
  if (socket && socket->refused() && !made_again_) {
    return base::text(us, " could not connect to ", peer_text(),
                      ", which has left or died unless the network is at fault,");
  }
  if (tried_again_ && never_made_ && !socket->connected()) {
    return base::text(us, " could not connect to ", peer_text(), " within ", duration_text(*tried_again_),
                      " (", kFirewall, ")");
  }
  return base::text(
      "the connection of ", us, " to ", peer_text(), " ended",
      tried_again_ ? base::text(", and could not be made again within ", duration_text(*tried_again_), ",")
                   : "");
}

bool PeerConnection::read_last_words(const Value& message) {
  const std::string& type = message.at("t").as_string();
  if (type == "fail") {
    const auto code = message.at("code").as_int(0, static_cast<int>(ErrorCode::system));
    const std::string text(cut_text(message.at("text").as_string(), kMaxFailureText));
    state_ = State::told;
    heard_last_words_ = true;
    throw Error(static_cast<ErrorCode>(code), text);
  }
  if (type != "left") return false;
  why_ = valid_text(cut_text(message.at("why").as_string(), LeaveReason::kMaxText));
  state_ = State::left;
  heard_last_words_ = true;
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
  if (linger > Milliseconds(0)) {
    if (!lingering_) lingering_ = Deadline::in(linger);
    linger =
        std::clamp(std::chrono::ceil<Milliseconds>(lingering_->at - Clock::now()), Milliseconds(0), linger);
  }
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
