#include "csrc_pg/collectives/finite.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace vccl {
namespace {

// How many elements are looked at before the first of them that is not finite is searched. The compiler turns
// the loop over a block of constant length into vector instructions.
constexpr std::size_t kBlock = 256;

/// In the bits of a float, `mask` are those that are all set in NaN and infinity, and `value` is what they
/// are then.
template <class Word, Word mask, Word value>
bool is_nonfinite(Word word) {
  return (word & mask) == value;
}

template <class Word, Word mask, Word value>
std::optional<std::size_t> find(const void* elements, std::size_t count) {
  const auto* bytes = static_cast<const std::byte*>(elements);
  for (std::size_t at = 0; at < count; at += kBlock) {
    Word block[kBlock] = {};  // zero is finite in every format
    const std::size_t length = std::min(kBlock, count - at);
    std::memcpy(block, bytes + at * sizeof(Word), length * sizeof(Word));
    Word found = 0;
    for (std::size_t i = 0; i < kBlock; ++i)
      found |= static_cast<Word>(is_nonfinite<Word, mask, value>(block[i]));
    if (found == 0) continue;
    return at + static_cast<std::size_t>(
                    std::find_if(block, block + length, &is_nonfinite<Word, mask, value>) - block);
  }
  return std::nullopt;
}

template <class Word, Word mask>
std::optional<std::size_t> find(const void* elements, std::size_t count) {
  return find<Word, mask, mask>(elements, count);
}

/// The index of an element, from that of one of its two parts.
std::optional<std::size_t> whole(std::optional<std::size_t> part) {
  return part ? std::optional(*part / 2) : part;
}

}  // namespace

std::optional<std::size_t> find_nonfinite(Dtype dtype, const void* elements, std::size_t count) noexcept {
  using std::uint16_t, std::uint32_t, std::uint64_t, std::uint8_t;
  constexpr uint32_t kFloat = 0x7f800000;
  constexpr uint64_t kDouble = 0x7ff0'0000'0000'0000;
  switch (dtype) {
    case Dtype::float16:
      return find<uint16_t, 0x7c00>(elements, count);
    case Dtype::bfloat16:
      return find<uint16_t, 0x7f80>(elements, count);
    case Dtype::float32:
      return find<uint32_t, kFloat>(elements, count);
    case Dtype::float64:
      return find<uint64_t, kDouble>(elements, count);
    case Dtype::complex64:
      return whole(find<uint32_t, kFloat>(elements, 2 * count));
    case Dtype::complex128:
      return whole(find<uint64_t, kDouble>(elements, 2 * count));
    case Dtype::float8_e4m3fn:  // it has no infinity
      return find<uint8_t, 0x7f>(elements, count);
    case Dtype::float8_e5m2:
      return find<uint8_t, 0x7c>(elements, count);
    case Dtype::float8_e4m3fnuz:  // the bits of a negative zero are the only NaN
    case Dtype::float8_e5m2fnuz:
      return find<uint8_t, 0xff, 0x80>(elements, count);
    case Dtype::float8_e8m0fnu:
      return find<uint8_t, 0xff>(elements, count);
    default:
      return std::nullopt;  // integers and bool
  }
}

}  // namespace vccl
