// Random numbers: a counter-based generator, the same on every card.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Generator.h>

namespace vdev {

/// State: a seed and an offset, nothing else (16 bytes, [seed u64, offset u64], as torch.distributed.tensor
/// reads it). An operator that draws numbers takes a CPU engine seeded from a hash of both and moves the
/// offset on by what it drew, so equal seeds give equal numbers on every card, and a saved offset can be
/// returned to.
class GeneratorImpl final : public c10::GeneratorImpl {
 public:
  explicit GeneratorImpl(int card, std::uint64_t seed = c10::default_rng_seed_val);

  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

  void set_current_seed(std::uint64_t seed) override;
  /// Raises RuntimeError unless `offset` is a multiple of 4.
  void set_offset(std::uint64_t offset) override;
  std::uint64_t get_offset() const override { return offset_; }
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override;
  /// A CPU uint8 tensor of 16 bytes.
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  /// A fresh seed for a CPU engine; moves the offset on by `numel` rounded up to 4. Hold the mutex.
  std::uint64_t draw(std::int64_t numel);

 private:
  GeneratorImpl* clone_impl() const override;

  std::uint64_t seed_;
  std::uint64_t offset_ = 0;
};

/// A card's default generator, made at first use from a random seed. Touches no card.
const at::Generator& default_generator(int card);

/// A CPU generator for one operator on `card` that draws about `numel` numbers: of `generator` if it is given
/// (it must be a vdev generator), else of the card's default one, whose offset moves on. Locks the generator.
at::Generator cpu_generator_for(const std::optional<at::Generator>& generator, int card, std::int64_t numel);

}  // namespace vdev
