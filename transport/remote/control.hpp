// The fields of control messages between hosts (protocol.hpp), which all links use.
#pragma once

#include <string>

#include "transport/communicator.hpp"
#include "transport/remote/zmq_api.hpp"
#include "transport/support/protocol.hpp"

namespace vccl {

/// The length to which a failure's text from another host is cut.
inline constexpr std::size_t kMaxFailureText = 4096;

/// Decodes a frame of rank `from` like read_record().
msgpack::Value read_control(const ZmqMessage& frame, int from);

/// Returns a signature's fields, for control_message().
msgpack::Map signature_fields(const Signature& signature);
/// Reads the signature's fields of a message. Throws Error(protocol) if a field is missing or out of range.
Signature read_signature(const msgpack::Value& message);

/// Encode a failure as {code, text}, and decode it.
msgpack::Map failure_fields(const Error& error);
Error read_failure(const msgpack::Value& message);

/// Encode the reason of a rank that leaves as {why}, and decode it. The text is empty if the rank gave no
/// reason.
msgpack::Map left_fields(const std::string& why);
std::string read_left(const msgpack::Value& message);

}  // namespace vccl
