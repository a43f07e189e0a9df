// The part of libcrypto's C interface that the links use. libcrypto is loaded at run time, as libzmq is:
// building needs neither its headers nor the library.
#pragma once

#include <cstddef>
#include <string>

namespace vccl {

/// The functions exist with these types in OpenSSL 1.1.1 and in every OpenSSL 3. The opaque types of
/// libcrypto are void here.
struct CryptoApi {
  static constexpr int kGetTag = 0x10, kSetTag = 0x11;  // EVP_CTRL_AEAD_GET_TAG and EVP_CTRL_AEAD_SET_TAG

  void* (*context_new)();
  void (*context_free)(void* context);
  int (*context_control)(void* context, int command, int number, void* pointer);
  const void* (*aes_256_gcm)();
  int (*encrypt_init)(void* context, const void* cipher, void* engine, const unsigned char* key,
                      const unsigned char* nonce);
  int (*encrypt_update)(void* context, unsigned char* out, int* out_bytes, const unsigned char* in,
                        int in_bytes);
  int (*encrypt_final)(void* context, unsigned char* out, int* out_bytes);
  int (*decrypt_init)(void* context, const void* cipher, void* engine, const unsigned char* key,
                      const unsigned char* nonce);
  int (*decrypt_update)(void* context, unsigned char* out, int* out_bytes, const unsigned char* in,
                        int in_bytes);
  int (*decrypt_final)(void* context, unsigned char* out, int* out_bytes);
  const void* (*sha256)();
  unsigned char* (*hmac)(const void* hash, const void* key, int key_bytes, const unsigned char* data,
                         std::size_t data_bytes, unsigned char* out, unsigned int* out_bytes);

  std::string path;  // the path of the loaded library
};

/// Returns the library, which the first call loads, or null if there is none. If VCCL_CRYPTO_LIBRARY is set,
/// only that path is tried, and Error(invalid) is thrown if it cannot be loaded; with "none" there is no
/// library. Otherwise the library that this process or the system has is tried, and then the path of
/// set_crypto_library_path(). Thread-safe.
const CryptoApi* crypto_api();

/// Returns what crypto_api() tried when it returned null, one line for each path.
std::string tried_crypto_libraries();

}  // namespace vccl
