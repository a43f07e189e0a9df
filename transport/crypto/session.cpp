#include "transport/crypto/session.hpp"

#include <cstring>

#include "base/text.hpp"
#include "transport/crypto/crypto_api.hpp"
#include "transport/error.hpp"

namespace vccl {
namespace {

using Digest = std::array<unsigned char, 32>;

Digest hmac(const void* key, std::size_t key_bytes, const std::string& data) {
  const CryptoApi* api = crypto_api();
  if (!api) throw Error(ErrorCode::system, "the keys of a link need libcrypto");
  Digest digest;
  unsigned int bytes = 0;
  if (!api->hmac(api->sha256(), key, static_cast<int>(key_bytes),
                 reinterpret_cast<const unsigned char*>(data.data()), data.size(), digest.data(), &bytes) ||
      bytes != digest.size()) {
    throw Error(ErrorCode::system, base::text("HMAC of ", api->path, " failed"));
  }
  return digest;
}

}  // namespace

// This is HKDF (RFC 5869): the secret is extracted from both contributions, and each key is expanded from the
// secret. A key is as long as the hash, so each expansion is one HMAC.
Session::Session(const std::string& connecting, const std::string& listening, const std::string& purpose)
    : purpose_(purpose) {
  if (connecting.size() != kContribution || listening.size() != kContribution) {
    throw Error(ErrorCode::protocol,
                base::text("contributions of ", connecting.size(), " and ", listening.size(),
                           " bytes to a key, instead of ", kContribution));
  }
  static const std::string kSalt = "vccl link 1";
  secret_ = hmac(kSalt.data(), kSalt.size(), connecting + listening);
}

Session::~Session() {
  if (const CryptoApi* api = crypto_api()) api->cleanse(secret_.data(), secret_.size());
}

FrameKey Session::key(std::uint64_t epoch) const {
  const auto expand = [&](const char* part) {
    return hmac(secret_.data(), secret_.size(), base::text(purpose_, "|", part, "|", epoch, '\x01'));
  };
  FrameKey result;
  result.key = expand("key");
  const Digest salt = expand("salt");
  std::memcpy(result.salt.data(), salt.data(), result.salt.size());
  return result;
}

}  // namespace vccl
