// A counter-based generator of random numbers, which works alike on every card.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Generator.h>

#include "csrc_device/torch/device_type.hpp"

namespace vdev {

/// Generates random numbers from a seed and an offset, which are its whole state (16 bytes, [seed u64, offset
/// u64], as torch.distributed.tensor reads it). An operator that draws numbers seeds a CPU engine from a hash
/// of both, and adds the count of numbers to the offset. So equal seeds give equal numbers on every card, and
/// a program can return to a saved offset.
class GeneratorImpl final : public c10::GeneratorImpl {
 public:
  explicit GeneratorImpl(int card, std::uint64_t seed = c10::default_rng_seed_val);

  static c10::DeviceType device_type() { return vdev::device_type(); }

  void set_current_seed(std::uint64_t seed) override;
  /// Sets the offset. Raises RuntimeError unless `offset` is a multiple of 4.
  void set_offset(std::uint64_t offset) override;
  std::uint64_t get_offset() const override { return offset_; }
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override;
  /// Sets the state from a CPU uint8 tensor of 16 bytes.
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  /// Returns a new seed for a CPU engine, and adds `numel`, rounded up to a multiple of 4, to the offset. The
  /// caller holds the generator's mutex.
  std::uint64_t draw(std::int64_t numel);

 private:
  GeneratorImpl* clone_impl() const override;

  std::uint64_t seed_;
  std::uint64_t offset_ = 0;
};

/// Returns a card's default generator, which is made at first use from a random seed. Makes no card.
const at::Generator& default_generator(int card);

/// Returns a CPU generator for one operator on `card` that draws about `numel` numbers. It is seeded from
/// `generator`, which must be a vdev generator, or from the card's default one if none is given; that
/// generator's offset moves on. Locks that generator.
at::Generator cpu_generator_for(const std::optional<at::Generator>& generator, int card, std::int64_t numel);

}  // namespace vdev
