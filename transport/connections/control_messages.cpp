#include "transport/connections/control_messages.hpp"

namespace vccl {

using msgpack::Map;
using msgpack::Value;

Value read_control(const ZmqMessage& frame, int from, const RankNames& names) {
  return read_record({reinterpret_cast<const char*>(frame.data()), frame.size()}, from, names);
}

Map signature_fields(const Signature& signature) {
  return {{"collective", static_cast<int>(signature.collective)},
          {"dtype", static_cast<int>(signature.dtype)},
          {"op", static_cast<int>(signature.op)},
          {"checks", static_cast<int>(signature.checks)},
          {"root", signature.root},
          {"count", signature.count},
          {"extra", signature.extra}};
}

Signature read_signature(const Value& message) {
  Signature signature;
  signature.collective = static_cast<std::uint8_t>(message.at("collective").as_int(0, 255));
  signature.dtype = static_cast<std::uint8_t>(message.at("dtype").as_int(0, 255));
  signature.op = static_cast<std::uint8_t>(message.at("op").as_int(0, 255));
  signature.checks = static_cast<std::uint8_t>(message.at("checks").as_int(0, 255));
  signature.root = static_cast<std::int32_t>(message.at("root").as_int(INT32_MIN, INT32_MAX));
  signature.count = message.at("count").as_uint();
  signature.extra = message.at("extra").as_uint();
  return signature;
}

}  // namespace vccl
