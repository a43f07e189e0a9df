// The secret of one direction of one connection, and the keys that follow from it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace vccl {

/// A key of AES-256 and the part of the nonces that stays the same for the key.
struct FrameKey {
  std::array<unsigned char, 32> key;
  std::array<unsigned char, 4> salt;
};

/// What two ranks have agreed on in their handshake. Both ends make the same session from the same arguments,
/// and any difference in one of these gives other keys.
class Session {
 public:
  /// How many random bytes each rank contributes to the secret.
  static constexpr std::size_t kContribution = 32;

  /// `connecting` and `listening` are the contributions of the rank that connected and of the other rank.
  /// `purpose` says what the keys are for: the sender, the receiver, and how frames are protected. Throws
  /// Error(protocol) for a contribution of another length, and Error(system) without libcrypto.
  Session(const std::string& connecting, const std::string& listening, const std::string& purpose);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Returns the key of an epoch. No two epochs or sessions have the same one.
  FrameKey key(std::uint64_t epoch) const;

 private:
  const std::string purpose_;
  std::array<unsigned char, 32> secret_;
};

}  // namespace vccl
