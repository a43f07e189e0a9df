#include "recorder/formats/dump_writers.hpp"

#include <bit>
#include <cmath>
#include <cstdio>

#include "base/text.hpp"

namespace vccl::records {

void PickleWriter::little_endian(std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xff);
}

void PickleWriter::text(std::string_view text) {
  bytes_ += 'X';
  little_endian(text.size(), 4);
  bytes_ += text;
}

void PickleWriter::pair(std::string_view first, std::string_view second) {
  text(first);
  text(second);
  bytes_ += '\x86';
}

void PickleWriter::integer(std::int64_t value) {
  if (value >= INT32_MIN && value <= INT32_MAX) {
    bytes_ += 'J';
    return little_endian(static_cast<std::uint64_t>(value), 4);
  }
  bytes_ += "\x8a\x08";  // a number of eight bytes
  little_endian(static_cast<std::uint64_t>(value), 8);
}

void PickleWriter::real(double value) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  bytes_ += 'G';
  for (int i = 7; i >= 0; --i) bytes_ += static_cast<char>(bits >> (8 * i) & 0xff);
}

void JsonWriter::separate() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (has_values_.empty()) return;
  if (has_values_.back()) bytes_ += ',';
  has_values_.back() = true;
}

void JsonWriter::open(char bracket) {
  separate();
  bytes_ += bracket;
  has_values_.push_back(false);
}

void JsonWriter::close(char bracket) {
  has_values_.pop_back();
  bytes_ += bracket;
}

void JsonWriter::key(std::string_view text) {
  separate();
  quoted(text);
  bytes_ += ':';
  after_key_ = true;
}

void JsonWriter::quoted(std::string_view text) {
  bytes_ += '"';
  for (const char character : text) {
    if (character == '"' || character == '\\') {
      bytes_ += '\\';
      bytes_ += character;
    } else if (character >= 0 && character < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(character));
      bytes_ += escaped;
    } else {
      bytes_ += character;
    }
  }
  bytes_ += '"';
}

void JsonWriter::text(std::string_view text) {
  separate();
  quoted(text);
}

void JsonWriter::pair(std::string_view first, std::string_view second) {
  begin_list();
  text(first);
  text(second);
  end_list();
}

void JsonWriter::integer(std::int64_t value) {
  separate();
  bytes_ += base::text(value);
}

void JsonWriter::real(double value) {
  separate();
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.9g", std::isfinite(value) ? value : 0.0);
  bytes_ += digits;
}

void JsonWriter::flag(bool value) {
  separate();
  bytes_ += value ? "true" : "false";
}

void JsonWriter::none() {
  separate();
  bytes_ += "null";
}

}  // namespace vccl::records
