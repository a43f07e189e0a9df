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

/// Holds the place of a stream of random numbers: a seed and an offset. Several generators may share one
/// state (graphsafe_set_state()), so it has a lock of its own. All functions may be called by any thread.
class RandomState {
 public:
  using Point = std::pair<std::uint64_t, std::uint64_t>;  // seed, offset

  explicit RandomState(Point point) : point_(point) {}

  Point point() const;
  void set_point(Point point);
  void set_offset(std::uint64_t offset);
  /// Adds `steps` to the offset. Returns the point before.
  Point advance(std::uint64_t steps);

 private:
  mutable std::mutex mutex_;
  Point point_;
};

/// Generates random numbers from a seed and an offset, which are its whole state (16 bytes, [seed u64, offset
/// u64], as torch.distributed.tensor reads it). An operator that draws numbers seeds a CPU engine from a hash
/// of both, and adds the count of numbers to the offset. So equal seeds give equal numbers on every card, and
/// a program can return to a saved offset.
class GeneratorImpl final : public c10::GeneratorImpl {
 public:
  explicit GeneratorImpl(int card, std::uint64_t seed = c10::default_rng_seed_val);
  /// Makes a generator that shares `state` with others.
  GeneratorImpl(int card, std::shared_ptr<RandomState> state);

  static c10::DeviceType device_type() { return vdev::device_type(); }

  void set_current_seed(std::uint64_t seed) override;
  /// Sets the offset. Raises RuntimeError unless `offset` is a multiple of 4.
  void set_offset(std::uint64_t offset) override;
  std::uint64_t get_offset() const override { return state_->point().second; }
  std::uint64_t current_seed() const override { return state_->point().first; }
  std::uint64_t seed() override;
  /// Sets the state from a CPU uint8 tensor of 16 bytes.
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  /// Shares the state of another generator from now on, as CUDA's does: programs switch between streams of
  /// random numbers so, also inside of a capture. Raises RuntimeError for a generator of another device type.
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override;
  /// Returns a generator that shares this generator's state, and keeps it when this generator gets another
  /// state.
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;

  /// Returns a new seed for a CPU engine, and adds `numel`, rounded up to a multiple of 4, to the offset.
  std::uint64_t draw(std::int64_t numel);
  /// The caller holds the generator's mutex.
  const std::shared_ptr<RandomState>& state() const { return state_; }

 private:
  GeneratorImpl* clone_impl() const override;

  std::shared_ptr<RandomState> state_;
};

/// Returns a card's default generator, which is made at first use from a random seed. Makes no card.
const at::Generator& default_generator(int card);

/// Holds the share of a graph in one random state. During the capture an operator gets a distance from an
/// offset that is known when the graph is replayed: a replay begins at the state's offset of that time, and
/// moves the offset on by all the numbers that the graph's operators draw.
class CapturedState {
 public:
  explicit CapturedState(std::shared_ptr<RandomState> state) : state_(std::move(state)) {}

  const std::shared_ptr<RandomState>& state() const { return state_; }
  /// Returns the distance at which an operator draws `numel` numbers. Call this during the capture.
  std::uint64_t draw(std::int64_t numel);
  /// Moves the state on by one replay. Returns the point at which the replay begins.
  RandomState::Point advance() const;
  /// Call these inside a replay, of which there is one at a time.
  void begin_replay(RandomState::Point point) { replayed_ = point; }
  const RandomState::Point& replayed() const { return replayed_; }

 private:
  const std::shared_ptr<RandomState> state_;
  std::atomic<std::uint64_t> drawn_{0};  // autograd's threads draw, too
  RandomState::Point replayed_;
};

/// Holds the random states of one graph. It is the attachment of the Capture.
class GraphGenerators {
 public:
  /// Lets the graph draw from `state`, as it may from the states of the cards' default generators.
  void add(const std::shared_ptr<RandomState>& state);
  /// Returns null for a state that was not added.
  std::shared_ptr<CapturedState> find(const std::shared_ptr<RandomState>& state);
  std::vector<std::shared_ptr<CapturedState>> all() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<CapturedState>> states_;
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
  std::shared_ptr<const CapturedState> captured_;
};

/// Takes about `numel` numbers for an operator on `card` from `generator`, which must be a vdev generator, or
/// from the card's default generator if none is given; that generator's offset moves on. Locks that
/// generator. While the card's current stream is captured, raises RuntimeError for a generator that the graph
/// does not know.
RandomDraw draw_for(const std::optional<at::Generator>& generator, int card, std::int64_t numel);

}  // namespace vdev
