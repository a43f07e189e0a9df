#include <charconv>

#include "base/schedule.hpp"

namespace base::schedule {
namespace {

/// Takes the text up to the next colon off its front.
std::string_view next_part(std::string_view& text) {
  const std::size_t colon = text.find(':');
  const std::string_view part = text.substr(0, colon);
  text = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  return part;
}

template <class Number>
bool reads(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::optional<Plan> parse(std::string_view text) {
  constexpr std::string_view kExact = ",exact";
  Plan plan;
  if (text.ends_with(kExact)) {
    plan.exact = true;
    text.remove_suffix(kExact.size());
  }
  const std::string_view kind = next_part(text);
  if (kind == "pct") {
    plan.kind = Kind::pct;
    if (!reads(next_part(text), plan.depth) || plan.depth < 1 || plan.depth > kMostDepth) return std::nullopt;
  } else if (kind != "random") {
    return std::nullopt;
  }
  if (!reads(text, plan.seed)) return std::nullopt;
  return plan;
}

}  // namespace base::schedule
