#include "transport/crypto/session.hpp"

#include <cstring>

#include "base/text.hpp"
#include "transport/crypto/crypto_api.hpp"
#include "transport/crypto/wipe.hpp"
#include "transport/error.hpp"

namespace vccl {
namespace {

using Digest = std::array<unsigned char, 32>;

/// Writes the digest to its place, so that no other copy of a key stays behind.
void hmac(const void* key, std::size_t key_bytes, const std::string& data, Digest& digest) {
  const CryptoApi* api = crypto_api();
  if (!api) throw Error(ErrorCode::system, "the keys of a link need libcrypto");
  unsigned int bytes = 0;
  if (!api->hmac(api->sha256(), key, static_cast<int>(key_bytes),
                 reinterpret_cast<const unsigned char*>(data.data()), data.size(), digest.data(), &bytes) ||
      bytes != digest.size()) {
    throw Error(ErrorCode::system, base::text("HMAC of ", api->path, " failed"));
  }
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
  std::string both;
  both.reserve(2 * kContribution);  // a string that grows leaves copies behind
  both += connecting;
  both += listening;
  hmac(kSalt.data(), kSalt.size(), both, secret_);
  wipe(both);
}

Session::~Session() {
  explicit_bzero(secret_.data(), secret_.size());
}

FrameKey Session::key(std::uint64_t epoch) const {
  const auto expand = [&](const char* part, Digest& to) {
    hmac(secret_.data(), secret_.size(), base::text(purpose_, "|", part, "|", epoch, '\x01'), to);
  };
  FrameKey result;
  expand("key", result.key);
  Digest salt;
  expand("salt", salt);
  std::memcpy(result.salt.data(), salt.data(), result.salt.size());
  explicit_bzero(salt.data(), salt.size());
  return result;
}

}  // namespace vccl
