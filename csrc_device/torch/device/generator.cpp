#include "csrc_device/torch/device/generator.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <c10/util/Exception.h>

#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/torch/streams.hpp"

namespace vdev {
namespace {

constexpr std::size_t kStateBytes = 2 * sizeof(std::uint64_t);

// Mixes 64 bits bijectively (multiply, xor-shift), so that neighbouring counters give unrelated seeds.
std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  x ^= x >> 32;
  return x;
}

// Returns the seed for the CPU engine of the operator that draws at `offset`.
std::uint64_t seed_at(std::uint64_t seed, std::uint64_t offset) {
  return mix(mix(seed) + mix(offset + 0x9e3779b97f4a7c15ULL));
}

// Returns by how much the offset moves on for `numel` numbers.
std::uint64_t steps_of(std::int64_t numel) {
  return (static_cast<std::uint64_t>(numel > 1 ? numel : 1) + 3) / 4 * 4;
}

// What the program does to a generator while it captures would not be repeated by the replays.
void refuse_during_own_capture(const c10::Device& device, const char* what) {
  TORCH_CHECK(
      !card_used(device.index()) || !is_captured(device.index()), what, " of a ", device_name(),
      " generator is not permitted while the current stream is capturing: do it before the capture, or "
      "before a replay");
}

void check_offset(const c10::Device& device, std::uint64_t offset) {
  refuse_during_own_capture(device, "Setting the offset");
  TORCH_CHECK(offset % 4 == 0, "The offset of a ", device_name(), " generator must be a multiple of 4, got ",
              offset);
}

}  // namespace

RandomState::Point RandomState::point() const {
  const std::lock_guard lock(mutex_);
  return point_;
}

void RandomState::set_point(Point point) {
  const std::lock_guard lock(mutex_);
  point_ = point;
}

void RandomState::set_offset(std::uint64_t offset) {
  const std::lock_guard lock(mutex_);
  point_.second = offset;
}

RandomState::Point RandomState::advance(std::uint64_t steps) {
  const std::lock_guard lock(mutex_);
  const Point before = point_;
  point_.second += steps;
  return before;
}

GeneratorImpl::GeneratorImpl(int card, std::uint64_t seed)
    : GeneratorImpl(card, std::make_shared<RandomState>(RandomState::Point{seed, 0})) {}

GeneratorImpl::GeneratorImpl(int card, std::shared_ptr<RandomState> state)
    : c10::GeneratorImpl(device_of(card), c10::DispatchKeySet(dense_key())), state_(std::move(state)) {}

void GeneratorImpl::set_current_seed(std::uint64_t seed) {
  refuse_during_own_capture(device(), "Setting the seed");
  state_->set_point({seed, 0});
}

void GeneratorImpl::set_offset(std::uint64_t offset) {
  check_offset(device(), offset);
  state_->set_offset(offset);
}

std::uint64_t GeneratorImpl::seed() {
  const std::uint64_t seed = c10::detail::getNonDeterministicRandom();
  set_current_seed(seed);
  return seed;
}

void GeneratorImpl::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == static_cast<std::int64_t>(kStateBytes), "The state of a ", device_name(),
              " generator has ", kStateBytes, " bytes (seed and offset, 64 bits each), got ", state.numel());
  std::uint64_t words[2];
  std::memcpy(words, state.data(), kStateBytes);
  check_offset(device(), words[1]);
  state_->set_point({words[0], words[1]});
}

c10::intrusive_ptr<c10::TensorImpl> GeneratorImpl::get_state() const {
  refuse_during_own_capture(device(), "Reading the state");
  auto state = at::detail::empty_cpu({static_cast<std::int64_t>(kStateBytes)}, at::kByte);
  const auto [seed, offset] = state_->point();
  const std::uint64_t words[2] = {seed, offset};
  std::memcpy(state.mutable_data_ptr(), words, kStateBytes);
  return state.getIntrusivePtr();
}

void GeneratorImpl::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) {
  const auto source = c10::dynamic_intrusive_pointer_cast<GeneratorImpl>(other);
  TORCH_CHECK(source, "Expected a ", device_name(), " generator to take the state of");
  state_ = source->state_;
}

c10::intrusive_ptr<c10::GeneratorImpl> GeneratorImpl::graphsafe_get_state() const {
  return c10::make_intrusive<GeneratorImpl>(device().index(), state_);
}

std::uint64_t GeneratorImpl::draw(std::int64_t numel) {
  const auto [seed, offset] = state_->advance(steps_of(numel));
  return seed_at(seed, offset);
}

GeneratorImpl* GeneratorImpl::clone_impl() const {
  return new GeneratorImpl(device().index(), std::make_shared<RandomState>(state_->point()));
}

const at::Generator& default_generator(int card) {
  // The generators are leaked, because they may be asked for while the process ends.
  static std::mutex mutex;
  static auto& generators = *new std::vector<at::Generator>(static_cast<std::size_t>(card_count()));
  check_card(card);
  std::lock_guard lock(mutex);
  auto& generator = generators[static_cast<std::size_t>(card)];
  if (!generator.defined()) {
    generator = at::make_generator<GeneratorImpl>(card, c10::detail::getNonDeterministicRandom());
  }
  return generator;
}

std::uint64_t CapturedState::draw(std::int64_t numel) {
  return drawn_.fetch_add(steps_of(numel), std::memory_order_relaxed);
}

RandomState::Point CapturedState::advance() const {
  return state_->advance(drawn_.load(std::memory_order_relaxed));
}

void GraphGenerators::add(const std::shared_ptr<RandomState>& state) {
  std::lock_guard lock(mutex_);
  const auto same = [&](const auto& known) { return known->state() == state; };
  if (std::ranges::none_of(states_, same)) states_.push_back(std::make_shared<CapturedState>(state));
}

std::shared_ptr<CapturedState> GraphGenerators::find(const std::shared_ptr<RandomState>& state) {
  std::lock_guard lock(mutex_);
  const auto same = [&](const auto& known) { return known->state() == state; };
  const auto found = std::ranges::find_if(states_, same);
  return found == states_.end() ? nullptr : *found;
}

std::vector<std::shared_ptr<CapturedState>> GraphGenerators::all() const {
  std::lock_guard lock(mutex_);
  return states_;
}

RandomDraw draw_for(const std::optional<at::Generator>& generator, int card, std::int64_t numel) {
  auto* source = at::get_generator_or_default<GeneratorImpl>(generator, default_generator(card));
  RandomDraw draw;
  std::lock_guard lock(source->mutex_);
  if (const auto capture = current_stream(card)->queue()->capture()) [[unlikely]] {
    auto* generators = static_cast<GraphGenerators*>(capture->attachment());
    if (source == default_generator(card).get<GeneratorImpl>()) generators->add(source->state());
    const auto captured = generators->find(source->state());
    TORCH_CHECK(captured,
                "Attempt to use an unregistered generator during a graph's capture: call "
                "register_generator_state(generator) of the graph first");
    draw.distance_ = captured->draw(numel);
    draw.captured_ = captured;
    return draw;
  }
  draw.seed_ = source->draw(numel);
  return draw;
}

at::Generator RandomDraw::generator() const {
  if (!captured_) return at::make_generator<at::CPUGeneratorImpl>(seed_);
  const auto& [seed, offset] = captured_->replayed();
  return at::make_generator<at::CPUGeneratorImpl>(seed_at(seed, offset + distance_));
}

}  // namespace vdev
