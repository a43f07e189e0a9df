#include "csrc_pg/collectives/content.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace vccl {
namespace {

// How many bytes are made ready at once. The compiler turns the loop over a block of constant length into
// vector instructions, and the block stays in the nearest cache.
constexpr std::size_t kBlockBytes = 2048;

/// Mixes words of 64 bits. Each step of a lane is a bijection, so words that differ in one place give
/// different values. Eight lanes let the processor overlap the multiplications.
class Hash {
 public:
  void add(const std::byte* bytes) noexcept {
    std::uint64_t words[kBlockBytes / 8];
    std::memcpy(words, bytes, kBlockBytes);
    for (std::size_t i = 0; i < std::size(words); i += std::size(lanes_))
      for (std::size_t lane = 0; lane < std::size(lanes_); ++lane)
        lanes_[lane] = std::rotl(lanes_[lane] ^ words[i + lane], 29) * kFactor;
  }
  std::uint64_t value(std::uint64_t count) const noexcept {
    std::uint64_t value = count;
    for (const std::uint64_t lane : lanes_) {
      value = (value ^ lane) * kFactor;
      value ^= value >> 32;
    }
    return value;
  }

 private:
  static constexpr std::uint64_t kFactor = 0x9e37'79b9'7f4a'7c15;  // odd, with as many ones as zeros
  std::uint64_t lanes_[8] = {1, 2, 3, 4, 5, 6, 7, 8};
};

/// In the bits of a float, a word is NaN if what remains without the sign is more than `infinity`.
template <class Word, Word without_sign, Word infinity>
Word with_one_nan(Word word) {
  return static_cast<Word>(word & without_sign) > infinity ? without_sign : word;
}

template <class Word>
Word as_it_is(Word word) {
  return word;
}

template <class Word, Word (*prepare)(Word)>
std::uint64_t hash_of(const void* elements, std::size_t count) {
  constexpr std::size_t kWords = kBlockBytes / sizeof(Word);
  const auto* bytes = static_cast<const std::byte*>(elements);
  Hash hash;
  for (std::size_t at = 0; at < count; at += kWords) {
    alignas(64) Word block[kWords] = {};
    std::memcpy(block, bytes + at * sizeof(Word), std::min(kWords, count - at) * sizeof(Word));
    for (Word& word : block) word = prepare(word);
    hash.add(reinterpret_cast<const std::byte*>(block));
  }
  return hash.value(count);
}

template <class Word, Word infinity>
std::uint64_t hash_of_floats(const void* elements, std::size_t count) {
  constexpr Word kWithoutSign = static_cast<Word>(static_cast<Word>(~Word{0}) >> 1);
  return hash_of<Word, with_one_nan<Word, kWithoutSign, infinity>>(elements, count);
}

}  // namespace

std::uint64_t content_of(Dtype dtype, const void* elements, std::size_t count) noexcept {
  using std::uint16_t, std::uint32_t, std::uint64_t, std::uint8_t;
  switch (dtype) {
    case Dtype::float16:
      return hash_of_floats<uint16_t, 0x7c00>(elements, count);
    case Dtype::bfloat16:
      return hash_of_floats<uint16_t, 0x7f80>(elements, count);
    case Dtype::float32:
      return hash_of_floats<uint32_t, 0x7f80'0000>(elements, count);
    case Dtype::complex64:
      return hash_of_floats<uint32_t, 0x7f80'0000>(elements, 2 * count);
    case Dtype::float64:
      return hash_of_floats<uint64_t, 0x7ff0'0000'0000'0000>(elements, count);
    case Dtype::complex128:
      return hash_of_floats<uint64_t, 0x7ff0'0000'0000'0000>(elements, 2 * count);
    case Dtype::float8_e4m3fn:  // it has no infinity
      return hash_of_floats<uint8_t, 0x7e>(elements, count);
    case Dtype::float8_e5m2:
      return hash_of_floats<uint8_t, 0x7c>(elements, count);
    default:  // integers, and floats with a single NaN
      return hash_of<uint8_t, as_it_is<uint8_t>>(elements, count * size_of(dtype));
  }
}

}  // namespace vccl
