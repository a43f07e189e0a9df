// What the texts of errors and messages have in common: lists, durations, and UTF-8 that is cut or not valid.
// base/text.hpp puts texts together.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "transport/deadline.hpp"

namespace vccl {

/// Returns the first bytes of a text, at most `most`, cut between two characters.
std::string_view cut_text(std::string_view text, std::size_t most) noexcept;

/// Returns the text with each byte that is not part of valid UTF-8 replaced by U+FFFD. Python refuses to make
/// a str of other bytes, so an error would become a UnicodeDecodeError.
std::string valid_text(std::string_view text);

/// Returns "1, 2, 5".
std::string numbers_text(std::span<const int> numbers);
/// Returns "30 s", "1.5 s" or "200 ms".
std::string duration_text(Milliseconds length);

}  // namespace vccl
