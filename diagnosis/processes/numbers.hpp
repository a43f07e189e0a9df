// Numbers in the texts that are read of other processes.
#pragma once

#include <charconv>
#include <string_view>
#include <system_error>

namespace vccl {

/// Reads a text that is a number and nothing else, with or without "0x" before it. Returns false otherwise.
template <class Number>
bool read_number(std::string_view text, Number& number, int radix = 10) {
  if (text.starts_with("0x")) text.remove_prefix(2);
  const auto [stopped, wrong] = std::from_chars(text.data(), text.data() + text.size(), number, radix);
  return wrong == std::errc() && stopped == text.data() + text.size();
}

}  // namespace vccl
