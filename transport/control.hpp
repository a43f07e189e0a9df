// Control messages between hosts, which all links share: MessagePack maps {v: version, t: type, ...}.
#pragma once

#include <string>

#include "transport/communicator.hpp"
#include "transport/msgpack.hpp"
#include "transport/zmq_api.hpp"

namespace vccl {

/// What a failure's text is cut to when it comes from another host.
inline constexpr std::size_t kMaxFailureText = 4096;

/// The bytes of a message.
std::string control(const char* type, msgpack::Map fields = {});
/// A frame as a message, its version checked. Throws Error(protocol) naming both ranks.
msgpack::Value read_control(const ZmqMessage& frame, int from, int us);

/// A signature's fields, for control().
msgpack::Map signature_fields(const Signature& signature);
/// The same of a message. Throws Error(protocol) when one is missing or out of range.
Signature read_signature(const msgpack::Value& message);

/// {code, text} of a failure, and back.
msgpack::Map failure_fields(const Error& error);
Error read_failure(const msgpack::Value& message);

}  // namespace vccl
