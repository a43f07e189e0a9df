// The part of MessagePack that control messages need: nil, bool, integers, str, bin, arrays, and maps with
// str keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/text.hpp"
#include "transport/error.hpp"

namespace vccl::msgpack {

/// An Error(protocol) for bytes that are no message, and for a message in which something is missing or has
/// another type. The text does not name the sender, because the decoder does not know it.
class Malformed : public Error {
 public:
  explicit Malformed(const std::string& why)
      : Error(ErrorCode::protocol, base::text("malformed control message: ", why)) {}
};

/// Bytes that are not text.
struct Binary {
  std::string bytes;
  bool operator==(const Binary&) const = default;
};

class Value;
using Array = std::vector<Value>;
using Map = std::map<std::string, Value>;

/// One value. The as_...() and at() members throw Malformed if the value has another type or range, so the
/// reader of a message needs no checks of its own for those.
class Value {
 public:
  Value() = default;
  Value(bool value) : value_(value) {}
  Value(int value) : value_(static_cast<std::int64_t>(value)) {}
  Value(std::int64_t value) : value_(value) {}
  /// Keeps an integer beyond int64 as uint64 and every other integer as int64, so that equal numbers compare
  /// equal.
  Value(std::uint64_t value);
  Value(const char* text) : value_(std::string(text)) {}
  Value(std::string text) : value_(std::move(text)) {}
  Value(Binary bytes) : value_(std::move(bytes)) {}
  Value(Array array) : value_(std::move(array)) {}
  Value(Map map) : value_(std::move(map)) {}
  bool operator==(const Value&) const = default;

  bool as_bool() const;
  /// Returns an integer in [low, high].
  std::int64_t as_int(std::int64_t low, std::int64_t high) const;
  std::uint64_t as_uint() const;
  const std::string& as_string() const;
  const std::string& as_binary() const;
  const Array& as_array() const;
  const Map& as_map() const;
  /// Returns the value of a map's key.
  const Value& at(const std::string& key) const;
  bool has(const std::string& key) const { return as_map().contains(key); }

 private:
  friend std::string encode(const Value& value);
  friend struct Encoder;
  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, std::string, Binary, Array, Map> value_;
};

/// Encodes each value in its shortest form, and map keys in order.
std::string encode(const Value& value);

/// Reads exactly one value that fills `bytes`. Throws Malformed if something is cut off, left over, nested
/// deeper than 8 levels, or of a type not listed above (float, ext), or if a map has a duplicate key or one
/// that is not text.
Value decode(std::string_view bytes);

}  // namespace vccl::msgpack
