#include "transport/crypto/frame.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/text.hpp"
#include "transport/crypto/crypto_api.hpp"
#include "transport/crypto/wipe.hpp"
#include "transport/error.hpp"

namespace vccl {
namespace {

constexpr std::size_t kNumberAt = 1, kOperationAt = 9, kTagAt = 17;
// The last number is never reached in practice. It keeps the arithmetic of epochs clear of a wrap.
constexpr std::uint64_t kNoNumberLeft = std::uint64_t{1} << 62;

const unsigned char* in_bytes(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

unsigned char* out_bytes(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}

}  // namespace

/// One key of one session in libcrypto's form, for one direction.
class FrameCipher {
 public:
  FrameCipher(const Session& session, std::uint64_t epoch, bool seals)
      : epoch_(epoch), api_(*crypto_api()), context_(api_.context_new()) {
    FrameKey key = session.key(epoch);
    salt_ = key.salt;
    const auto init = seals ? api_.encrypt_init : api_.decrypt_init;
    const bool ready = context_ && init(context_, api_.aes_256_gcm(), nullptr, key.key.data(), nullptr) == 1;
    explicit_bzero(&key, sizeof key);
    if (ready) return;
    api_.context_free(context_);
    throw failed();
  }
  ~FrameCipher() { api_.context_free(context_); }
  FrameCipher(const FrameCipher&) = delete;
  FrameCipher& operator=(const FrameCipher&) = delete;

  std::uint64_t epoch() const { return epoch_; }

  /// Writes the tag behind the rest of `header`. Encrypts the payload to `sealed` unless that is null.
  void seal(FrameHeader::Bytes& header, std::uint64_t number, std::span<const std::byte> payload,
            std::byte* sealed) {
    unsigned char none[FrameHeader::kTagBytes];
    int length = 0;
    const auto update = [&](unsigned char* out, std::span<const std::byte> in) {
      return in.empty() ||
             api_.encrypt_update(context_, out, &length, in_bytes(in), static_cast<int>(in.size()));
    };
    const bool done = api_.encrypt_init(context_, nullptr, nullptr, nullptr, nonce(number).data()) == 1 &&
                      update(nullptr, std::span(header).first(kTagAt)) &&
                      update(sealed ? out_bytes(sealed) : nullptr, payload) &&
                      api_.encrypt_final(context_, none, &length) == 1 &&
                      api_.context_control(context_, CryptoApi::kGetTag, FrameHeader::kTagBytes,
                                           header.data() + kTagAt) == 1;
    if (!done) throw failed();
  }

  /// Returns whether the tag is right. If `decrypts`, deciphers the payload in place.
  bool open(std::span<const std::byte> header, std::uint64_t number, std::span<std::byte> payload,
            bool decrypts) {
    unsigned char none[FrameHeader::kTagBytes], tag[FrameHeader::kTagBytes];
    std::memcpy(tag, header.data() + kTagAt, sizeof tag);
    int length = 0;
    const auto update = [&](unsigned char* out, std::span<const std::byte> in) {
      return in.empty() ||
             api_.decrypt_update(context_, out, &length, in_bytes(in), static_cast<int>(in.size()));
    };
    return api_.decrypt_init(context_, nullptr, nullptr, nullptr, nonce(number).data()) == 1 &&
           update(nullptr, header.first(kTagAt)) &&
           update(decrypts ? out_bytes(payload.data()) : nullptr, payload) &&
           api_.context_control(context_, CryptoApi::kSetTag, FrameHeader::kTagBytes, tag) == 1 &&
           api_.decrypt_final(context_, none, &length) == 1;
  }

 private:
  std::array<unsigned char, 12> nonce(std::uint64_t number) const {
    std::array<unsigned char, 12> nonce;
    std::memcpy(nonce.data(), salt_.data(), salt_.size());
    std::memcpy(nonce.data() + salt_.size(), &number, sizeof number);
    return nonce;
  }
  Error failed() const {
    return Error(ErrorCode::system, base::text("AES-256-GCM of ", api_.path, " failed"));
  }

  const std::uint64_t epoch_;
  const CryptoApi& api_;
  void* const context_;
  std::array<unsigned char, 4> salt_;
};

FrameProtection FrameProtection::agree(LinkSecurity security, const std::string& connecting,
                                       const std::string& listening, const std::string& purpose) {
  FrameProtection result{security, nullptr, {}};
  if (security != LinkSecurity::none) {
    result.session = std::make_unique<Session>(connecting, listening, purpose);
    return result;
  }
  if (listening.size() < result.token.size()) {
    throw Error(ErrorCode::protocol, base::text("a token of ", listening.size(), " bytes for a link"));
  }
  std::memcpy(result.token.data(), listening.data(), result.token.size());
  return result;
}

FrameSealer::FrameSealer(FrameProtection protection, std::uint64_t first)
    : protection_(std::move(protection)), next_(first) {}
FrameSealer::~FrameSealer() = default;

FrameHeader::Bytes FrameSealer::seal(FrameKind kind, std::uint64_t operation,
                                     std::span<const std::byte> payload, std::byte* sealed) {
  if (next_ >= kNoNumberLeft) throw Error(ErrorCode::system, "a link has sent all frames that it can number");
  const std::uint64_t number = next_++;
  FrameHeader::Bytes header{};
  header[0] = static_cast<std::byte>(kind);
  std::memcpy(header.data() + kNumberAt, &number, sizeof number);
  std::memcpy(header.data() + kOperationAt, &operation, sizeof operation);
  if (!protection_.session) {
    std::memcpy(header.data() + kTagAt, protection_.token.data(), protection_.token.size());
    return header;
  }
  if (!cipher_ || cipher_->epoch() != number / kEpoch)
    cipher_ = std::make_unique<FrameCipher>(*protection_.session, number / kEpoch, true);
  cipher_->seal(header, number, payload, encrypts() ? sealed : nullptr);
  return header;
}

FrameOpener::FrameOpener(FrameProtection protection, std::uint64_t first)
    : protection_(std::move(protection)), next_(first) {}
FrameOpener::~FrameOpener() = default;

FrameOpener::Verdict FrameOpener::open(std::span<const std::byte> header_bytes, std::span<std::byte> payload,
                                       FrameHeader& header) {
  if (header_bytes.size() != FrameHeader::kBytes || payload.size() > kMostPayload) return Verdict::malformed;
  FrameHeader found;
  found.kind = static_cast<FrameKind>(header_bytes[0]);
  if (found.kind != FrameKind::greeting && found.kind != FrameKind::block) return Verdict::malformed;
  std::memcpy(&found.number, header_bytes.data() + kNumberAt, sizeof found.number);
  std::memcpy(&found.operation, header_bytes.data() + kOperationAt, sizeof found.operation);
  // Anybody can write a number. So one that is wrong says something about the link only if the frame is
  // authentic. Frames so far ahead that their key is unknown are not looked at.
  if (found.number / kEpoch > next_ / kEpoch + 1) return Verdict::stranger;
  if (found.number < next_) return Verdict::repeated;
  if (!is_authentic(header_bytes, found.number, payload)) return Verdict::stranger;
  if (found.number != next_) {
    throw Error(ErrorCode::protocol,
                base::text("frame ", found.number, " where frame ", next_, " comes next: frames were lost"));
  }
  ++next_;
  header = found;
  return Verdict::good;
}

bool FrameOpener::is_authentic(std::span<const std::byte> header_bytes, std::uint64_t number,
                               std::span<std::byte> payload) {
  if (!protection_.session) return std::ranges::equal(header_bytes.subspan(kTagAt), protection_.token);
  const std::uint64_t epoch = number / kEpoch;
  std::unique_ptr<FrameCipher> other;
  if (!cipher_ || cipher_->epoch() != epoch)
    other = std::make_unique<FrameCipher>(*protection_.session, epoch, false);
  FrameCipher& cipher = other ? *other : *cipher_;
  if (!cipher.open(header_bytes, number, payload, protection_.security == LinkSecurity::encrypt))
    return false;
  if (other) cipher_ = std::move(other);
  return true;
}

const char* text_of(FrameOpener::Verdict verdict) {
  switch (verdict) {
    case FrameOpener::Verdict::good:
      return "is good";
    case FrameOpener::Verdict::malformed:
      return "is malformed";
    case FrameOpener::Verdict::repeated:
      return "is repeated";
    default:
      return "is not from a rank of the group";
  }
}

}  // namespace vccl
