#include "transport/support/protocol.hpp"

#include <cstdint>

#include "base/text.hpp"

namespace vccl {

using msgpack::Map;
using msgpack::Value;

std::string encode_record(Map fields) {
  fields["v"] = kProtocolVersion;
  return msgpack::encode(Value(std::move(fields)));
}

std::string control_message(const char* type, Map fields) {
  fields["t"] = type;
  return encode_record(std::move(fields));
}

Value read_record(std::string_view bytes, int from, const RankNames& names) {
  Value record = msgpack::decode(bytes);
  if (const auto version = record.at("v").as_int(0, INT64_MAX); version != kProtocolVersion) {
    throw Error(ErrorCode::protocol,
                base::text(from < 0 ? "another process" : names.rank(from), " speaks version ", version,
                           " to ranks that speak version ", kProtocolVersion,
                           ": all ranks must run the same version of vccl"));
  }
  return record;
}

}  // namespace vccl
