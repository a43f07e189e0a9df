// The frames in which payload travels between hosts: a header of fixed length, and the payload behind it.
//
// A frame is protected as VCCL_LINK_SECURITY says: encrypted and authenticated with AES-256-GCM,
// authenticated only (the same cipher takes the payload as data beside the text), or neither. The frames of a
// direction have ascending numbers. The number is authenticated and is part of the nonce, so a frame that is
// repeated, reordered, left out or from somebody else is noticed, and a nonce is never used twice. Every
// kEpoch frames both ends go on to the next key of their session.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "transport/crypto/session.hpp"
#include "transport/variables.hpp"

namespace vccl {

enum class FrameKind : std::uint8_t { greeting = 1, block = 2 };

/// What a frame says of itself.
struct FrameHeader {
  static constexpr std::size_t kTagBytes = 16;
  static constexpr std::size_t kBytes = 1 + 8 + 8 + kTagBytes;
  using Bytes = std::array<std::byte, kBytes>;

  FrameKind kind = FrameKind::greeting;
  std::uint64_t number = 0;     // of the frames of one direction of one connection, from 0
  std::uint64_t operation = 0;  // the sequence number of the operation that it belongs to
};

/// How many frames one key protects. With the longest blocks these are 2^34 blocks of the cipher, which is
/// what TLS allows as well.
inline constexpr std::uint64_t kEpoch = std::uint64_t{1} << 20;
/// The longest payload of a frame that a FrameOpener takes, in bytes.
inline constexpr std::size_t kMostPayload = 256 * 1024;

/// How the frames of one direction are protected. Both ends have the same.
struct FrameProtection {
  LinkSecurity security = LinkSecurity::encrypt;
  std::unique_ptr<Session> session;                          // null without protection
  std::array<std::byte, FrameHeader::kTagBytes> token = {};  // stands in place of tags without protection

  /// Makes the protection from what two ranks have told each other in their handshake. The arguments are
  /// those of Session.
  static FrameProtection agree(LinkSecurity security, const std::string& connecting,
                               const std::string& listening, const std::string& purpose);
};

class FrameCipher;

/// Protects the frames that this rank sends in one direction. Not thread-safe.
class FrameSealer {
 public:
  explicit FrameSealer(FrameProtection protection, std::uint64_t first = 0);
  ~FrameSealer();

  /// Returns whether a payload has to be written to other memory before it is sent.
  bool encrypts() const { return protection_.security == LinkSecurity::encrypt; }
  /// Returns the header of the next frame. If this sealer encrypts, writes what is to be sent to `sealed`,
  /// which has the payload's length and may be the payload's own memory. Throws Error(system) if libcrypto
  /// fails, or when no number is left.
  FrameHeader::Bytes seal(FrameKind kind, std::uint64_t operation, std::span<const std::byte> payload,
                          std::byte* sealed);
  /// Returns the number that the next frame will have.
  std::uint64_t next() const { return next_; }

 private:
  const FrameProtection protection_;
  std::unique_ptr<FrameCipher> cipher_;  // of the epoch of next_
  std::uint64_t next_;
};

/// Checks the frames that this rank receives from one direction. Not thread-safe.
class FrameOpener {
 public:
  /// The outcome of a check. Only a good frame counts; the others are to be dropped.
  enum class Verdict { good, malformed, stranger, repeated };

  explicit FrameOpener(FrameProtection protection, std::uint64_t first = 0);
  ~FrameOpener();

  /// Checks a frame, whose payload is deciphered in place, and sets `header` if the frame is good. The
  /// payload of any other frame is spoiled. Throws Error(protocol) for a frame of the peer with a number that
  /// is not the next: frames were lost.
  Verdict open(std::span<const std::byte> header_bytes, std::span<std::byte> payload, FrameHeader& header);
  /// Returns the number of the frame that comes next.
  std::uint64_t next() const { return next_; }

 private:
  bool is_authentic(std::span<const std::byte> header_bytes, std::uint64_t number,
                    std::span<std::byte> payload);

  const FrameProtection protection_;
  std::unique_ptr<FrameCipher> cipher_;  // of the epoch of next_
  std::uint64_t next_;
};

/// Returns a verdict in words: "is malformed".
const char* text_of(FrameOpener::Verdict verdict);

}  // namespace vccl
