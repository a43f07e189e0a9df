// Numbers and texts as bytes, and back.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace sanitizer {

class ByteWriter {
 public:
  void number(std::uint64_t value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    bytes_.append(bytes, sizeof value);
  }
  void text(std::string_view value) {
    number(value.size());
    bytes_.append(value);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads what ByteWriter has written. Once something is missing, every read returns nothing and ok() is
/// false.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  std::uint64_t number() {
    std::uint64_t value = 0;
    const auto bytes = take(sizeof value);
    if (bytes.size() == sizeof value) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::string_view text() { return take(number()); }
  /// Returns a number of items of at least `item` bytes that are still there, or 0.
  std::uint64_t count(std::size_t item) {
    const auto items = number();
    if (items <= bytes_.size() / item) return items;
    ok_ = false;
    return 0;
  }
  /// Returns whether everything was there so far.
  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && bytes_.empty(); }

 private:
  std::string_view take(std::uint64_t bytes) {
    if (!ok_ || bytes > bytes_.size()) {
      ok_ = false;
      return {};
    }
    const auto taken = bytes_.substr(0, bytes);
    bytes_.remove_prefix(bytes);
    return taken;
  }

  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace sanitizer
