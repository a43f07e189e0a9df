// What all that ranks tell each other has in common. It is a MessagePack map {v: version, ...}. One that is
// read from a socket also has its type, {v: version, t: type, ...}.
#pragma once

#include <string>
#include <string_view>

#include "transport/msgpack.hpp"
#include "transport/rank_names.hpp"

namespace vccl {

/// The version of all records in the rendezvous store, all packets of the hand-over, and all control messages
/// between hosts. It changes whenever one of them changes. The layout of the control memory has a version of
/// its own, ControlHeader::kMagic.
inline constexpr int kProtocolVersion = 14;

/// Encodes a record for the rendezvous store.
std::string encode_record(msgpack::Map fields);
/// Encodes a message for a socket.
std::string control_message(const char* type, msgpack::Map fields = {});
/// Decodes either of them. Throws Error(protocol) for another version. The text names rank `from`, which is
/// -1 if the sender is not known.
msgpack::Value read_record(std::string_view bytes, int from, const RankNames& names = {});

}  // namespace vccl
