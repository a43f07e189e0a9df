#include "faults/rule.hpp"

#include <array>
#include <stdexcept>

#include "base/text.hpp"

namespace vccl::faults {
namespace {

// In the order of the enumerators.
constexpr std::array<std::string_view, 21> kKinds{
    "kill",       "segv",     "abort",     "exit",       "raise",     "stall",     "late",
    "stop",       "slow",     "corrupt",   "nan",        "oom",       "sdc",       "lose-host",
    "reset-link", "cut-link", "drop-link", "delay-link", "loss-link", "full-disk", "no-descriptors"};
constexpr std::array<std::string_view, 3> kMoments{"before", "during", "after"};

template <class Enum, std::size_t count>
Enum find(const std::array<std::string_view, count>& words, std::string_view word) {
  for (std::size_t i = 0; i < count; ++i)
    if (words[i] == word) return static_cast<Enum>(i);
  throw std::invalid_argument(base::text("a plan of faults has no word ", word));
}

}  // namespace

std::string_view word_of(Kind kind) noexcept {
  return kKinds[static_cast<std::size_t>(kind)];
}

std::string_view word_of(Moment moment) noexcept {
  return kMoments[static_cast<std::size_t>(moment)];
}

Kind kind_of(std::string_view word) {
  return find<Kind>(kKinds, word);
}

Moment moment_of(std::string_view word) {
  return find<Moment>(kMoments, word);
}

bool ends_process(Kind kind) noexcept {
  switch (kind) {
    case Kind::kill:
    case Kind::segv:
    case Kind::abort:
    case Kind::exit:
    case Kind::stop:
    case Kind::lose_host:
      return true;
    default:
      return false;
  }
}

bool is_of_links(Kind kind) noexcept {
  switch (kind) {
    case Kind::reset_link:
    case Kind::cut_link:
    case Kind::drop_link:
    case Kind::delay_link:
    case Kind::loss_link:
      return true;
    default:
      return false;
  }
}

bool is_named(std::string_view op, std::string_view by_rule) noexcept {
  for (const std::string_view form : {"", "_coalesced", "_into_tensor", "_tensor", "_single"}) {
    if (!op.ends_with(form)) continue;
    op.remove_suffix(form.size());
    if (op == by_rule) return true;
  }
  return false;
}

}  // namespace vccl::faults
