#include "base/text.hpp"

namespace base {

std::string joined(std::initializer_list<TextPiece> pieces) {
  std::size_t length = 0;
  for (const TextPiece& piece : pieces) length += piece.characters().size();
  std::string result;
  result.reserve(length);
  for (const TextPiece& piece : pieces) result += piece.characters();
  return result;
}

}  // namespace base
