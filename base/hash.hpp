// Hashes of 64 bits that do not change from run to run, nor between the processes of a job.
#pragma once

#include <cstdint>
#include <string_view>

namespace base {

/// The hash of no bytes, to begin with.
inline constexpr std::uint64_t kHashOfNothing = 0xcbf29ce484222325U;

/// Returns the hash of the bytes of `hash` and then `byte`, by FNV-1a (Fowler, Noll and Vo).
constexpr std::uint64_t hash_byte(std::uint64_t hash, unsigned char byte) noexcept {
  return (hash ^ byte) * 0x100000001b3U;
}

/// Returns the hash of a text.
constexpr std::uint64_t hash_text(std::string_view text) noexcept {
  std::uint64_t hash = kHashOfNothing;
  for (const char letter : text) hash = hash_byte(hash, static_cast<unsigned char>(letter));
  return hash;
}

/// Mixes the bits of a number by splitmix64 (Steele, Lea and Flood 2014), so that neighbouring numbers give
/// unrelated ones. Different numbers give different results.
constexpr std::uint64_t mix_bits(std::uint64_t value) noexcept {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

}  // namespace base
