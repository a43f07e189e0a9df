#include "transport/crypto/crypto_api.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/text.hpp"
#include "transport/error.hpp"
#include "transport/libraries.hpp"
#include "transport/variables.hpp"

namespace vccl {
namespace {

constexpr std::uint64_t kNoHandlerAtExit = 0x00080000;  // OPENSSL_INIT_NO_ATEXIT

std::mutex crypto_mutex;                        // guards what the next three functions return
std::atomic<const CryptoApi*> crypto{nullptr};  // set once, under the mutex; the library stays loaded
std::string& last_resort() {
  static auto* path = new std::string;
  return *path;
}
std::string& tried() {
  static auto* lines = new std::string;
  return *lines;
}

/// Returns the library's functions, or nothing if one is missing. Adds to tried() why.
const CryptoApi* find_functions(void* handle, const std::string& path) {
  auto api = std::make_unique<CryptoApi>();
  std::string missing;
  const auto get = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (!function) missing = name;
  };
  get(api->context_new, "EVP_CIPHER_CTX_new");
  get(api->context_free, "EVP_CIPHER_CTX_free");
  get(api->context_control, "EVP_CIPHER_CTX_ctrl");
  get(api->aes_256_gcm, "EVP_aes_256_gcm");
  get(api->encrypt_init, "EVP_EncryptInit_ex");
  get(api->encrypt_update, "EVP_EncryptUpdate");
  get(api->encrypt_final, "EVP_EncryptFinal_ex");
  get(api->decrypt_init, "EVP_DecryptInit_ex");
  get(api->decrypt_update, "EVP_DecryptUpdate");
  get(api->decrypt_final, "EVP_DecryptFinal_ex");
  get(api->sha256, "EVP_sha256");
  get(api->hmac, "HMAC");
  int (*init)(std::uint64_t, const void*) = nullptr;
  get(init, "OPENSSL_init_crypto");
  if (!missing.empty()) {
    tried() += base::text("\n  ", path, ": has no ", missing, "; OpenSSL 1.1.1 or later is needed");
    return nullptr;
  }
  // A collective may still run on another thread while the process exits, so a handler must not take the
  // ciphers away. Where Python has initialised the library before, the handler stays.
  init(kNoHandlerAtExit, nullptr);
  api->path = path;
  return api.release();
}

const CryptoApi* try_library(const std::string& path) {
  if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return find_functions(handle, path);
  const char* why = dlerror();
  tried() += base::text("\n  ", path, ": ", why ? why : "unknown error");
  return nullptr;
}

const CryptoApi* load_crypto() {
  tried().clear();
  if (const std::string chosen = read_variables().crypto_library; chosen == "none") {
    tried() = "\n  VCCL_CRYPTO_LIBRARY is \"none\"";
    return nullptr;
  } else if (!chosen.empty()) {
    if (const CryptoApi* found = try_library(chosen)) return found;
    throw Error(
        ErrorCode::invalid,
        base::text("VCCL_CRYPTO_LIBRARY is \"", chosen,
                   "\"; allowed are the path of a libcrypto of OpenSSL and \"none\". Tried:", tried()));
  }
  // The first two names find the copy that Python's own ssl module uses, where that is loaded or installed.
  for (const std::string& path :
       {std::string("libcrypto.so.3"), std::string("libcrypto.so.1.1"), last_resort()}) {
    if (path.empty()) continue;
    if (const CryptoApi* found = try_library(path)) return found;
  }
  return nullptr;
}

}  // namespace

void set_crypto_library_path(const std::string& path) {
  std::lock_guard lock(crypto_mutex);
  last_resort() = path;
}

const CryptoApi* crypto_api() {
  // This load pairs with the release store below: a thread that sees the pointer sees the functions.
  if (const CryptoApi* loaded = crypto.load(std::memory_order_acquire)) return loaded;
  std::lock_guard lock(crypto_mutex);
  if (!crypto.load()) crypto.store(load_crypto(), std::memory_order_release);
  return crypto.load();
}

std::string tried_crypto_libraries() {
  std::lock_guard lock(crypto_mutex);
  return tried();
}

}  // namespace vccl
