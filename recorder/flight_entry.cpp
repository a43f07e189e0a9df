#include "recorder/flight_entry.hpp"

#include <algorithm>
#include <cstring>

#include "base/text.hpp"

namespace vccl {

void put_text(std::span<char> to, std::string_view text) noexcept {
  constexpr std::string_view kCut = "...";
  std::ranges::fill(to, '\0');
  if (text.size() <= to.size()) {
    std::ranges::copy(text, to.begin());
    return;
  }
  const auto kept = base::cut_text(text, to.size() - kCut.size());
  std::ranges::copy(kCut, std::ranges::copy(kept, to.begin()).out);
}

std::string get_text(std::span<const char> from) {
  const auto end = std::ranges::find(from, '\0');
  auto text = base::valid_text({from.data(), static_cast<std::size_t>(end - from.begin())});
  std::ranges::replace_if(
      text, [](char character) { return (character >= 0 && character < 0x20) || character == 0x7f; }, ' ');
  return text;
}

bool FlightEntry::list(std::uint8_t dtype, std::span<const std::int64_t> shape) noexcept {
  const auto listed = static_cast<std::size_t>(listed_inputs + listed_outputs);
  if (is(kSizesCut) || listed == kMostTensors || listed_sizes + shape.size() > kMostSizes) {
    flags |= kSizesCut;
    return false;
  }
  dtypes[listed] = dtype;
  dimensions[listed] = static_cast<std::uint8_t>(shape.size());
  std::ranges::copy(shape, sizes.begin() + listed_sizes);
  listed_sizes = static_cast<std::uint8_t>(listed_sizes + shape.size());
  return true;
}

void FlightEntry::add_input(std::uint8_t dtype, std::span<const std::int64_t> shape) noexcept {
  if (inputs < UINT16_MAX) ++inputs;
  if (list(dtype, shape)) ++listed_inputs;
}

void FlightEntry::add_output(std::uint8_t dtype, std::span<const std::int64_t> shape) noexcept {
  if (outputs < UINT16_MAX) ++outputs;
  if (list(dtype, shape)) ++listed_outputs;
}

bool FlightEntry::is_sound() const noexcept {
  const auto listed = static_cast<std::size_t>(listed_inputs) + listed_outputs;
  if (listed > kMostTensors || listed_sizes > kMostSizes) return false;
  if (listed_inputs > inputs || listed_outputs > outputs) return false;
  std::size_t used = 0;
  for (std::size_t i = 0; i < listed; ++i) used += dimensions[i];
  return used == listed_sizes;
}

void FlightGroup::set_ranks(std::span<const std::uint64_t> numbers) noexcept {
  const auto number = [&](std::size_t i) { return static_cast<std::uint32_t>(numbers[i]); };
  size = static_cast<std::uint32_t>(numbers.size());
  ranks = {};
  form = kListed;
  if (size <= kMostRanks) {
    for (std::size_t i = 0; i < numbers.size(); ++i) ranks[i] = number(i);
    return;
  }
  const std::uint32_t distance = number(1) - number(0);
  form = kProgression;
  for (std::size_t i = 1; i < numbers.size() && form == kProgression; ++i)
    if (number(i) - number(i - 1) != distance) form = kListed;
  if (form == kProgression) {
    ranks[0] = number(0);
    ranks[1] = distance;
  } else {
    for (std::size_t i = 0; i < kMostRanks; ++i) ranks[i] = number(i);
  }
}

std::uint32_t FlightGroup::known_ranks() const noexcept {
  return form == kProgression ? size : std::min<std::uint32_t>(size, kMostRanks);
}

std::int64_t FlightGroup::in_job(std::uint32_t member) const noexcept {
  if (member >= known_ranks()) return -1;
  return form == kProgression ? static_cast<std::uint32_t>(ranks[0] + member * ranks[1]) : ranks[member];
}

bool FlightGroup::is_sound() const noexcept {
  // A job has fewer ranks than that, and a reader lists them all.
  constexpr std::uint32_t kMostOfJob = 1 << 20;
  return size >= 1 && size <= kMostOfJob && rank < size && form <= kProgression && open <= 1;
}

}  // namespace vccl
