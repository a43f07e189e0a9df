#include "base/text.hpp"

#include <algorithm>
#include <cstdint>

namespace base {

std::string joined(std::initializer_list<TextPiece> pieces) {
  std::size_t length = 0;
  for (const TextPiece& piece : pieces) length += piece.characters().size();
  std::string result;
  result.reserve(length);
  for (const TextPiece& piece : pieces) result += piece.characters();
  return result;
}

namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

std::uint8_t byte_at(std::string_view text, std::size_t i) {
  return static_cast<std::uint8_t>(text[i]);
}

bool continues(std::string_view text, std::size_t i) {
  return i < text.size() && (byte_at(text, i) & 0xc0) == 0x80;
}

/// Returns how many bytes the first character has, or 0 if the text begins with none (Unicode, table 3-7).
std::size_t character_length(std::string_view text) {
  const std::uint8_t first = byte_at(text, 0);
  if (first < 0x80) return 1;
  if (!continues(text, 1)) return 0;
  const std::uint8_t second = byte_at(text, 1);
  if (first >= 0xc2 && first <= 0xdf) return 2;
  if (!continues(text, 2)) return 0;
  const bool overlong3 = first == 0xe0 && second < 0xa0, surrogate = first == 0xed && second > 0x9f;
  if (first >= 0xe0 && first <= 0xef) return overlong3 || surrogate ? 0 : 3;
  if (!continues(text, 3)) return 0;
  const bool overlong4 = first == 0xf0 && second < 0x90, beyond = first == 0xf4 && second > 0x8f;
  return first >= 0xf0 && first <= 0xf4 && !overlong4 && !beyond ? 4 : 0;
}

}  // namespace

std::string_view cut_text(std::string_view text, std::size_t most) noexcept {
  if (text.size() <= most) return text;
  std::size_t end = most;
  // A character has at most three bytes after its first byte.
  while (end > 0 && most - end < 3 && continues(text, end)) --end;
  return text.substr(0, continues(text, end) ? most : end);
}

std::string valid_text(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    result += length ? text.substr(0, length) : kReplacement;
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return result;
}

}  // namespace base
