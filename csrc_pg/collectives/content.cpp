#include "csrc_pg/collectives/content.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/text.hpp"
#include "csrc_pg/collectives/kernels/narrow_floats.hpp"
#include "csrc_pg/collectives/run.hpp"

namespace vccl {
namespace {

template <class Number>
Number read_as(const void* element) {
  Number number;
  std::memcpy(&number, element, sizeof number);
  return number;
}

template <class Format>
float widened(const void* element) {
  const auto bits = read_as<typename Format::Bits>(element);
  // widen() takes the bits at the upper end.
  return Format::widen(std::uint32_t{bits} << (8 * (sizeof(std::uint32_t) - sizeof bits)));
}

std::string formatted(const char* format, auto number) {
  char text[40];
  return {text, static_cast<std::size_t>(std::snprintf(text, sizeof text, format, number))};
}

/// Returns the element, or a part of a complex one. Floats have as many digits as tell two of them apart.
template <class Number>
std::string number_text(const void* element) {
  if constexpr (std::is_void_v<Number>)
    return formatted("0x%02x", unsigned{read_as<std::uint8_t>(element)});
  else if constexpr (std::is_integral_v<Number>)
    return base::text(+read_as<Number>(element));
  else if constexpr (std::is_same_v<Number, double>)
    return formatted("%.17g", read_as<double>(element));
  else if constexpr (std::is_same_v<Number, float>)
    return formatted("%.9g", double{read_as<float>(element)});
  else
    return formatted("%.5g", double{widened<Number>(element)});
}

/// Returns what each rank has, in the order of ranks.
template <class Value>
std::vector<Value> gather(Communicator& communicator, const Value& own, const Deadline& deadline) {
  std::vector<Value> all(static_cast<std::size_t>(communicator.size()));
  Call call{.collective = Collective::all_gather};
  call.count = sizeof(Value);
  call.input = &own;
  call.output = all.data();
  run(communicator, call, deadline);
  return all;
}

template <class Value>
bool all_equal(const std::vector<Value>& values) {
  return std::ranges::all_of(values, [&](const Value& value) { return value == values.front(); });
}

// How many different values of an element a text shows.
constexpr std::size_t kMostValues = 4;

/// The bytes of one element.
struct Element {
  std::byte bytes[16];
};

}  // namespace

std::string element_text(Dtype dtype, const void* element) {
  const auto* second = static_cast<const std::byte*>(element) + size_of(dtype) / 2;
  switch (dtype) {
#define VCCL_CASE(enumerator, name, torch, size, kind, Number)                                         \
  case Dtype::enumerator:                                                                              \
    return DtypeKind::kind == DtypeKind::complex                                                       \
               ? base::text("(", number_text<Number>(element), ", ", number_text<Number>(second), ")") \
               : number_text<Number>(element);
    VCCL_DTYPES(VCCL_CASE)
#undef VCCL_CASE
  }
  return "?";
}

std::optional<ContentDifference> find_difference(Communicator& communicator, Dtype dtype,
                                                 const void* elements, std::size_t count,
                                                 const Deadline& deadline) {
  const auto* bytes = static_cast<const std::byte*>(elements);
  const std::size_t size = size_of(dtype);
  ContentDifference difference;
  difference.contents = gather(communicator, content_of(dtype, bytes, count), deadline);
  if (all_equal(difference.contents)) return std::nullopt;
  // The first difference lies in [first, end), unless somebody writes to the buffer meanwhile. All ranks see
  // the same answers, so they take the same steps.
  std::size_t first = 0, end = count;
  while (end - first > 1) {
    const std::size_t middle = first + (end - first) / 2;
    const auto half = content_of(dtype, bytes + first * size, middle - first);
    (all_equal(gather(communicator, half, deadline)) ? first : end) = middle;
  }
  difference.element = first;
  Element own{};
  std::memcpy(own.bytes, bytes + first * size, size);
  for (const Element& element : gather(communicator, own, deadline))
    difference.values.push_back(element_text(dtype, element.bytes));
  return difference;
}

std::string describe(const ContentDifference& difference, const RankNames& names) {
  // The values in the order of the first rank that has each.
  std::vector<std::pair<std::string, std::vector<int>>> values;
  for (int rank = 0; rank < static_cast<int>(difference.values.size()); ++rank) {
    const auto& value = difference.values[static_cast<std::size_t>(rank)];
    const auto known = std::ranges::find(values, value, [](const auto& entry) { return entry.first; });
    if (known == values.end())
      values.push_back({value, {rank}});
    else
      known->second.push_back(rank);
  }
  const std::size_t shown = std::min(values.size(), kMostValues);
  std::string text = base::text("element ", difference.element);
  for (std::size_t i = 0; i < shown; ++i)
    text += base::text(i == 0                                   ? " is "
                       : i + 1 < shown || shown < values.size() ? ", "
                                                                : " and ",
                       values[i].first, " on ", names.ranks(values[i].second));
  if (shown < values.size()) text += ", and something else on other ranks";
  if (values.size() == 1) text += " by now, and was not before, so something still writes to it";
  return text;
}

}  // namespace vccl
