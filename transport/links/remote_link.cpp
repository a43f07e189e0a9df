#include "transport/links/remote_link.hpp"

#include "base/text.hpp"
#include "transport/connections/link_security.hpp"
#include "transport/crypto/crypto_api.hpp"
#include "transport/crypto/wipe.hpp"
#include "transport/system/machine.hpp"

namespace vccl {

using msgpack::Binary;
using msgpack::Map;
using msgpack::Value;

namespace {

constexpr std::size_t kSession = 16;  // bytes

}  // namespace

void RemoteLink::offer_stream(Map& record) {
  if (can_protect_blocks(settings.security)) receiver = std::make_unique<BlockReceiver>(settings, group_.log);
  record["security"] = name_of(settings.security);
  record["stream"] = receiver ? receiver->endpoint() : "";
}

Map RemoteLink::accept_stream(const Value& record) {
  check_same_security(group_, settings.security, rank, record.at("security").as_string());
  stream_endpoint_ = record.at("stream").as_string();
  if (!stream_endpoint_.empty() && can_protect_blocks(settings.security))
    contribution_ = random_bytes(Session::kContribution);
  session_ = random_bytes(kSession);
  Map fields = contribution();
  fields["session"] = Binary{session_};
  return fields;
}

void RemoteLink::greet(const Value& hello, const ZmqSocket::Received& received) {
  read_hello(hello, received.control.sender());
  if (side == Side::right) return open_stream(hello);
  session_ = hello.at("session").as_binary();
  if (session_.size() != kSession) throw Error(ErrorCode::protocol, "a session of another length");
  open_stream(hello);
  welcome(hello, received.route);
}

Map RemoteLink::contribution() const {
  return contribution_.empty() ? Map() : Map{{"secret", Binary{contribution_}}};
}

/// Reads the secret of the neighbour's hello, and opens this rank's end of the stream.
void RemoteLink::open_stream(const Value& hello) {
  const bool theirs = hello.has("secret");
  if (side == Side::left) {
    if (!theirs) return receiver.reset();
    if (!receiver) throw Error(ErrorCode::protocol, "a stream that nobody offered");
    contribution_ = random_bytes(Session::kContribution);
    receiver->accept(agree(hello.at("secret").as_binary()));
  } else if (theirs == contribution_.empty()) {
    throw Error(ErrorCode::protocol, "another answer than fits the question for a stream");
  } else if (theirs) {
    sender = std::make_unique<BlockSender>(stream_endpoint_, agree(hello.at("secret").as_binary()),
                                           settings.silence, true, attempt_);
    wipe(contribution_);
  }
  group_.log.info(base::text("blocks ", side == Side::left ? "from" : "to", " ", group_.rank_text(rank), ": ",
                             !theirs ? "CURVE of libzmq" : name_of(settings.security),
                             theirs && settings.security != LinkSecurity::none
                                 ? base::text(" with AES-256-GCM of ", crypto_api()->path)
                                 : ""));
}

/// Returns the protection of blocks from the rank on the left of this link to the one on its right.
FrameProtection RemoteLink::agree(const std::string& theirs) const {
  const bool receives = side == Side::left;
  const std::string purpose =
      base::text("blocks|", group_.name, "|", receives ? rank : group_.rank, "|",
                 receives ? group_.rank : rank, "|", name_of(settings.security), "|", listener.token);
  return FrameProtection::agree(settings.security, receives ? theirs : contribution_,
                                receives ? contribution_ : theirs, purpose);
}

}  // namespace vccl
