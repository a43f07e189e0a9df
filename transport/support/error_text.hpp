// What the texts of errors and messages have in common: lists and durations. base/text.hpp puts texts
// together and cuts them.
#pragma once

#include <span>
#include <string>

#include "base/text.hpp"
#include "transport/deadline.hpp"

namespace vccl {

using base::cut_text;
using base::valid_text;

/// Returns "1, 2, 5".
std::string numbers_text(std::span<const int> numbers);
/// Returns "30 s", "1.5 s" or "200 ms".
std::string duration_text(Milliseconds length);

}  // namespace vccl
