// Helpers for UTF-8 text that another process may have written, or that is too long.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace vccl {

/// Returns the first bytes of a text, at most `most`, cut between two characters.
std::string_view cut_text(std::string_view text, std::size_t most) noexcept;

/// Returns the text with each byte that is not part of valid UTF-8 replaced by U+FFFD. Python refuses to make
/// a str of other bytes, so an error would become a UnicodeDecodeError.
std::string valid_text(std::string_view text);

}  // namespace vccl
