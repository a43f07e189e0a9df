// A counter-based generator of random numbers, which works alike on every card.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

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

/// Holds what one generator gives to a graph. What an operator draws during the capture is a distance from an
/// offset that is known when the graph is replayed: a replay begins where the generator is then, and the
/// generator moves on by what all operators of the graph have drawn.
class CapturedGenerator {
 public:
  explicit CapturedGenerator(at::Generator generator) : generator_(std::move(generator)) {}

  const at::Generator& generator() const { return generator_; }
  /// Returns the distance at which an operator draws `numel` numbers. Call this during the capture.
  std::uint64_t draw(std::int64_t numel);
  /// Moves the generator on by one replay. Returns the seed and the offset at which the replay begins.
  std::pair<std::uint64_t, std::uint64_t> advance() const;
  /// Call these inside a replay, of which there is one at a time.
  void begin_replay(std::pair<std::uint64_t, std::uint64_t> seed_and_offset) { replayed_ = seed_and_offset; }
  const std::pair<std::uint64_t, std::uint64_t>& replayed() const { return replayed_; }

 private:
  const at::Generator generator_;
  std::atomic<std::uint64_t> drawn_{0};  // autograd's threads draw, too
  std::pair<std::uint64_t, std::uint64_t> replayed_;
};

/// Holds the generators of one graph. It is the attachment of the Capture.
class GraphGenerators {
 public:
  /// Lets the graph draw from `generator`, as it may from the default generators of the cards.
  void add(const at::Generator& generator);
  /// Returns null for a generator that was not added.
  std::shared_ptr<CapturedGenerator> find(const at::Generator& generator);
  std::vector<std::shared_ptr<CapturedGenerator>> all() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<CapturedGenerator>> generators_;
};

/// Says which random numbers one operator gets. It is made when the operator is called. Its generator is made
/// when the operator runs, each time anew, because an operator in a graph runs with each replay.
class RandomDraw {
 public:
  /// Returns a CPU generator that is seeded for this operator.
  at::Generator generator() const;

 private:
  friend RandomDraw draw_for(const std::optional<at::Generator>& generator, int card, std::int64_t numel);
  std::uint64_t seed_ = 0;      // of the CPU generator, without a graph
  std::uint64_t distance_ = 0;  // in a graph
  std::shared_ptr<const CapturedGenerator> captured_;
};

/// Takes about `numel` numbers for an operator on `card` from `generator`, which must be a vdev generator, or
/// from the card's default one if none is given; that generator's offset moves on. Locks that generator.
/// While the card's current stream is captured, raises RuntimeError for a generator that the graph does not
/// know.
RandomDraw draw_for(const std::optional<at::Generator>& generator, int card, std::int64_t numel);

}  // namespace vdev
