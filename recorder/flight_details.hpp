// What an entry of the flight recorder has no room for.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace vccl {

/// The tensors of a call if an entry cannot list all of them, and the splits of an all_to_all. They lie in
/// shared memory as a row of numbers, and only while somebody wants them (FlightRecorder::want_details).
struct FlightDetails {
  struct Tensor {
    std::uint8_t dtype = 0;
    std::vector<std::int64_t> shape;
    bool operator==(const Tensor&) const = default;
  };
  std::vector<Tensor> inputs, outputs;                    // all of them, or none if the entry lists them
  std::vector<std::int64_t> input_splits, output_splits;  // in rows of the first dimension

  bool empty() const noexcept {
    return inputs.empty() && outputs.empty() && input_splits.empty() && output_splits.empty();
  }
  std::vector<std::int64_t> encoded() const;
  /// Returns nothing for numbers that encoded() cannot have returned.
  static std::optional<FlightDetails> decoded(std::span<const std::int64_t> numbers);
  bool operator==(const FlightDetails&) const = default;
};

}  // namespace vccl
