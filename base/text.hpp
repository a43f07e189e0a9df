// Putting the texts of errors and logs together, and cutting them. (std::format comes with GCC 13.)
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

namespace base {

/// A number that text() writes in decimals. A bool does not count as a number: a text says it in words.
template <class Type>
concept Decimal = std::integral<Type> && !std::same_as<Type, bool> && !std::same_as<Type, char>;

/// A piece that text() puts together: characters that are somewhere else, or a number's digits, which it
/// holds.
class TextPiece {
 public:
  explicit TextPiece(std::string_view characters) : characters_(characters) {}
  template <std::same_as<char> Character>
  explicit TextPiece(Character character) : characters_(digits_, 1) {
    digits_[0] = character;
  }
  template <Decimal Number>
  explicit TextPiece(Number number) {
    characters_ = {digits_, std::to_chars(digits_, digits_ + sizeof digits_, number).ptr};
  }
  TextPiece(const TextPiece&) = delete;  // a copy would show the digits of this object

  std::string_view characters() const { return characters_; }

 private:
  char digits_[20];  // of the longest number, -2^63
  std::string_view characters_;
};

/// Returns the pieces in their order as one string.
std::string joined(std::initializer_list<TextPiece> pieces);

/// Returns strings, characters and whole numbers in their order as one string: text("rank ", 3, " left").
template <class... Pieces>
std::string text(const Pieces&... pieces) {
  return joined({TextPiece(pieces)...});
}

/// Returns the first bytes of a text, at most `most`, cut between two characters.
std::string_view cut_text(std::string_view text, std::size_t most) noexcept;

/// Returns the text with each byte that is not part of valid UTF-8 replaced by U+FFFD. Python refuses to make
/// a str of other bytes, so an error would become a UnicodeDecodeError.
std::string valid_text(std::string_view text);

}  // namespace base
