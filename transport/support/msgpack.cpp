#include "transport/msgpack.hpp"

#include <limits>

#include "base/text.hpp"

namespace vccl::msgpack {
namespace {

constexpr int kMaxDepth = 8;

[[noreturn]] void refuse(const std::string& why) {
  throw Malformed(why);
}

class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : rest_(bytes) {}

  Value value(int depth) {
    if (depth > kMaxDepth) refuse("nested too deeply");
    const auto tag = static_cast<std::uint8_t>(number(1));
    if (tag <= 0x7f) return static_cast<std::int64_t>(tag);
    if (tag >= 0xe0) return static_cast<std::int64_t>(static_cast<std::int8_t>(tag));
    if (tag <= 0x8f) return map(tag & 0x0f, depth);
    if (tag <= 0x9f) return array(tag & 0x0f, depth);
    if (tag <= 0xbf) return text(tag & 0x1f);
    return long_form(tag, depth);
  }

  bool empty() const { return rest_.empty(); }

 private:
  Value long_form(std::uint8_t tag, int depth) {
    switch (tag) {
      case 0xc0:
        return Value();
      case 0xc2:
        return false;
      case 0xc3:
        return true;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return Binary{text(number(std::size_t{1} << (tag - 0xc4)))};
      case 0xcc:
      case 0xcd:
      case 0xce:
      case 0xcf:
        return number(std::size_t{1} << (tag - 0xcc));
      case 0xd0:
        return static_cast<std::int64_t>(static_cast<std::int8_t>(number(1)));
      case 0xd1:
        return static_cast<std::int64_t>(static_cast<std::int16_t>(number(2)));
      case 0xd2:
        return static_cast<std::int64_t>(static_cast<std::int32_t>(number(4)));
      case 0xd3:
        return static_cast<std::int64_t>(number(8));
      case 0xd9:
      case 0xda:
      case 0xdb:
        return text(number(std::size_t{1} << (tag - 0xd9)));
      case 0xdc:
      case 0xdd:
        return array(number(tag == 0xdc ? 2 : 4), depth);
      case 0xde:
      case 0xdf:
        return map(number(tag == 0xde ? 2 : 4), depth);
      default:
        refuse(base::text("type byte ", tag));
    }
  }

  std::uint64_t number(std::size_t bytes) {
    if (rest_.size() < bytes) refuse("cut off in a number");
    std::uint64_t result = 0;
    for (std::size_t i = 0; i < bytes; ++i) result = result << 8 | static_cast<std::uint8_t>(rest_[i]);
    rest_.remove_prefix(bytes);
    return result;
  }

  std::string text(std::uint64_t length) {
    if (rest_.size() < length) refuse("cut off in a string");
    std::string result(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return result;
  }

  Array array(std::uint64_t length, int depth) {
    // Every element takes at least one byte, so a length that the message cannot hold allocates nothing.
    if (rest_.size() < length) refuse("cut off in an array");
    Array result;
    result.reserve(length);
    for (std::uint64_t i = 0; i < length; ++i) result.push_back(value(depth + 1));
    return result;
  }

  Map map(std::uint64_t length, int depth) {
    if (rest_.size() / 2 < length) refuse("cut off in a map");
    Map result;
    for (std::uint64_t i = 0; i < length; ++i) {
      std::string key = value(depth + 1).as_string();
      if (!result.emplace(std::move(key), value(depth + 1)).second) refuse("a key appears twice");
    }
    return result;
  }

  std::string_view rest_;
};

}  // namespace

struct Encoder {
  std::string out;

  void number(std::uint64_t value, std::size_t bytes) {
    for (std::size_t i = bytes; i-- > 0;) out.push_back(static_cast<char>(value >> (8 * i)));
  }
  void tag(int byte) { out.push_back(static_cast<char>(byte)); }

  // Writes a length. It has a short form inside the tag (if `limit` is not 0) and forms of 1 (if `one` is not
  // 0), 2 and 4 bytes.
  void length(std::size_t size, int fix, std::size_t limit, int one, int two) {
    if (size > std::numeric_limits<std::uint32_t>::max()) refuse("longer than 4 GiB");
    if (size < limit) return tag(fix | static_cast<int>(size));
    if (one && size <= 0xff) return tag(one), number(size, 1);
    if (size <= 0xffff) return tag(two), number(size, 2);
    tag(two + 1), number(size, 4);
  }

  void operator()(std::monostate) { tag(0xc0); }
  void operator()(bool value) { tag(value ? 0xc3 : 0xc2); }
  void operator()(std::uint64_t value) {
    if (value <= 0x7f) return tag(static_cast<int>(value));
    if (value <= 0xff) return tag(0xcc), number(value, 1);
    if (value <= 0xffff) return tag(0xcd), number(value, 2);
    if (value <= 0xffffffff) return tag(0xce), number(value, 4);
    tag(0xcf), number(value, 8);
  }
  void operator()(std::int64_t value) {
    const auto bits = static_cast<std::uint64_t>(value);
    if (value >= 0) return (*this)(bits);
    if (value >= -32) return tag(static_cast<int>(bits & 0xff));
    if (value >= std::numeric_limits<std::int8_t>::min()) return tag(0xd0), number(bits, 1);
    if (value >= std::numeric_limits<std::int16_t>::min()) return tag(0xd1), number(bits, 2);
    if (value >= std::numeric_limits<std::int32_t>::min()) return tag(0xd2), number(bits, 4);
    tag(0xd3), number(bits, 8);
  }
  void operator()(const std::string& text) {
    length(text.size(), 0xa0, 32, 0xd9, 0xda);
    out += text;
  }
  void operator()(const Binary& binary) {
    length(binary.bytes.size(), 0, 0, 0xc4, 0xc5);
    out += binary.bytes;
  }
  void operator()(const Array& array) {
    length(array.size(), 0x90, 16, 0, 0xdc);
    for (const Value& value : array) std::visit(*this, value.value_);
  }
  void operator()(const Map& map) {
    length(map.size(), 0x80, 16, 0, 0xde);
    for (const auto& [key, value] : map) {
      (*this)(key);
      std::visit(*this, value.value_);
    }
  }
};

std::string encode(const Value& value) {
  Encoder encoder;
  std::visit(encoder, value.value_);
  return std::move(encoder.out);
}

Value decode(std::string_view bytes) {
  Decoder decoder(bytes);
  Value value = decoder.value(0);
  if (!decoder.empty()) refuse("bytes are left over");
  return value;
}

Value::Value(std::uint64_t value) {
  if (value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    value_ = static_cast<std::int64_t>(value);
  } else {
    value_ = value;
  }
}

bool Value::as_bool() const {
  if (auto* value = std::get_if<bool>(&value_)) return *value;
  refuse("a boolean was expected");
}

std::int64_t Value::as_int(std::int64_t low, std::int64_t high) const {
  auto* value = std::get_if<std::int64_t>(&value_);
  if (!value) refuse("an integer was expected");
  if (*value < low || *value > high) {
    refuse(base::text("the integer ", *value, " is not in [", low, ", ", high, "]"));
  }
  return *value;
}

std::uint64_t Value::as_uint() const {
  if (auto* value = std::get_if<std::uint64_t>(&value_)) return *value;
  return static_cast<std::uint64_t>(as_int(0, std::numeric_limits<std::int64_t>::max()));
}

const std::string& Value::as_string() const {
  if (auto* value = std::get_if<std::string>(&value_)) return *value;
  refuse("text was expected");
}

const std::string& Value::as_binary() const {
  if (auto* value = std::get_if<Binary>(&value_)) return value->bytes;
  refuse("bytes were expected");
}

const Array& Value::as_array() const {
  if (auto* value = std::get_if<Array>(&value_)) return *value;
  refuse("an array was expected");
}

const Map& Value::as_map() const {
  if (auto* value = std::get_if<Map>(&value_)) return *value;
  refuse("a map was expected");
}

const Value& Value::at(const std::string& key) const {
  const Map& map = as_map();
  auto found = map.find(key);
  if (found == map.end()) refuse(base::text("the key \"", key, "\" is missing"));
  return found->second;
}

}  // namespace vccl::msgpack
