#include "csrc_device/torch/generator.hpp"

#include <cstring>
#include <mutex>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <c10/util/Exception.h>

#include "csrc_device/runtime/card.hpp"
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

}  // namespace

GeneratorImpl::GeneratorImpl(int card, std::uint64_t seed)
    : c10::GeneratorImpl(device_of(card), c10::DispatchKeySet(dense_key())), seed_(seed) {}

void GeneratorImpl::set_current_seed(std::uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

void GeneratorImpl::set_offset(std::uint64_t offset) {
  TORCH_CHECK(offset % 4 == 0, "The offset of a ", device_name(), " generator must be a multiple of 4, got ",
              offset);
  offset_ = offset;
}

std::uint64_t GeneratorImpl::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

void GeneratorImpl::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == static_cast<std::int64_t>(kStateBytes), "The state of a ", device_name(),
              " generator has ", kStateBytes, " bytes (seed and offset, 64 bits each), got ", state.numel());
  std::uint64_t words[2];
  std::memcpy(words, state.data(), kStateBytes);
  set_offset(words[1]);
  seed_ = words[0];
}

c10::intrusive_ptr<c10::TensorImpl> GeneratorImpl::get_state() const {
  auto state = at::detail::empty_cpu({static_cast<std::int64_t>(kStateBytes)}, at::kByte);
  const std::uint64_t words[2] = {seed_, offset_};
  std::memcpy(state.mutable_data_ptr(), words, kStateBytes);
  return state.getIntrusivePtr();
}

std::uint64_t GeneratorImpl::draw(std::int64_t numel) {
  const std::uint64_t drawn = mix(mix(seed_) + mix(offset_ + 0x9e3779b97f4a7c15ULL));
  const auto count = static_cast<std::uint64_t>(numel > 1 ? numel : 1);
  offset_ += (count + 3) / 4 * 4;
  return drawn;
}

GeneratorImpl* GeneratorImpl::clone_impl() const {
  auto* copy = new GeneratorImpl(device().index(), seed_);
  copy->offset_ = offset_;
  return copy;
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

at::Generator cpu_generator_for(const std::optional<at::Generator>& generator, int card, std::int64_t numel) {
  auto* source = at::get_generator_or_default<GeneratorImpl>(generator, default_generator(card));
  std::uint64_t seed = 0;
  {
    std::lock_guard lock(source->mutex_);
    seed = source->draw(numel);
  }
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

}  // namespace vdev
