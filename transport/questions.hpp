// Questions to ranks on other hosts, and to other processes of this user.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/deadline.hpp"

namespace vccl {

/// Says how to ask a rank. A question has to contain the token.
struct AnsweringRank {
  int rank = -1;     // in the job
  std::string host;  // the name of its host
  std::string endpoint, key, token;
};

/// Returns the parts of the answer to a question. Each part has at most kMostInPart bytes. Must not throw.
using AnswerQuestion = std::function<std::vector<std::string>(std::string_view question)>;
inline constexpr std::size_t kMostInPart = 300 * 1024;

struct Question {
  AnsweringRank to;
  std::string text;
};

/// Asks all at the same time, and waits at most `patience`. Returns the parts of each answer; nothing where
/// the answer has not come. May be called on any thread. Throws Error(system) if this process has not enough
/// descriptors.
std::vector<std::optional<std::vector<std::string>>> ask(const std::vector<Question>& questions,
                                                         Milliseconds patience);

}  // namespace vccl
