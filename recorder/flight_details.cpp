#include "recorder/flight_details.hpp"

#include <algorithm>
#include <cstddef>

namespace vccl {
namespace {

using Tensor = FlightDetails::Tensor;

/// Takes numbers from the front of a row, whatever they are.
class Row {
 public:
  explicit Row(std::span<const std::int64_t> numbers) : left_(numbers) {}

  std::optional<std::int64_t> number(std::int64_t most) {
    if (left_.empty() || left_.front() < 0 || left_.front() > most) return std::nullopt;
    const auto first = left_.front();
    left_ = left_.subspan(1);
    return first;
  }
  /// Takes a count and so many numbers.
  std::optional<std::vector<std::int64_t>> numbers() {
    const auto count = number(static_cast<std::int64_t>(left_.size()));
    if (!count || static_cast<std::size_t>(*count) > left_.size()) return std::nullopt;
    const auto taken = left_.first(static_cast<std::size_t>(*count));
    left_ = left_.subspan(taken.size());
    return std::vector(taken.begin(), taken.end());
  }
  std::optional<std::vector<Tensor>> tensors() {
    const auto count = number(static_cast<std::int64_t>(left_.size()));
    if (!count) return std::nullopt;
    std::vector<Tensor> all;
    for (std::int64_t i = 0; i < *count; ++i) {
      const auto dtype = number(UINT8_MAX);
      auto shape = dtype ? numbers() : std::nullopt;
      if (!shape) return std::nullopt;
      all.push_back({static_cast<std::uint8_t>(*dtype), std::move(*shape)});
    }
    return all;
  }
  bool at_end() const { return left_.empty(); }

 private:
  std::span<const std::int64_t> left_;
};

}  // namespace

std::vector<std::int64_t> FlightDetails::encoded() const {
  std::vector<std::int64_t> row;
  const auto add = [&](const std::vector<std::int64_t>& numbers) {
    row.push_back(static_cast<std::int64_t>(numbers.size()));
    row.insert(row.end(), numbers.begin(), numbers.end());
  };
  for (const auto* tensors : {&inputs, &outputs}) {
    row.push_back(static_cast<std::int64_t>(tensors->size()));
    for (const auto& tensor : *tensors) {
      row.push_back(tensor.dtype);
      add(tensor.shape);
    }
  }
  add(input_splits);
  add(output_splits);
  return row;
}

std::optional<FlightDetails> FlightDetails::decoded(std::span<const std::int64_t> numbers) {
  Row row(numbers);
  auto inputs = row.tensors();
  auto outputs = inputs ? row.tensors() : std::nullopt;
  auto input_splits = outputs ? row.numbers() : std::nullopt;
  auto output_splits = input_splits ? row.numbers() : std::nullopt;
  if (!output_splits || !row.at_end()) return std::nullopt;
  return FlightDetails{std::move(*inputs), std::move(*outputs), std::move(*input_splits),
                       std::move(*output_splits)};
}

}  // namespace vccl
