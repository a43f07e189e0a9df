// The fields of control messages between hosts (protocol.hpp), which all links use.
#pragma once

#include <string>

#include "transport/communicator.hpp"
#include "transport/connections/zmq_api.hpp"
#include "transport/support/protocol.hpp"

namespace vccl {

/// Decodes a frame of rank `from` like read_record().
msgpack::Value read_control(const ZmqMessage& frame, int from, const RankNames& names = {});

/// Returns a signature's fields, for control_message().
msgpack::Map signature_fields(const Signature& signature);
/// Reads the signature's fields of a message. Throws Error(protocol) if a field is missing or out of range.
Signature read_signature(const msgpack::Value& message);

}  // namespace vccl
