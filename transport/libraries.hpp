// The choice of the libraries that the links between hosts load: libzmq and libcrypto.
#pragma once

#include <string>

namespace vccl {

/// Sets the path that is tried first when VCCL_ZMQ_LIBRARY is not set. Python passes the path of the pyzmq
/// wheel's copy. Has no effect once the library is loaded.
void set_zmq_library_path(const std::string& path);

/// Sets the path that is tried last when VCCL_CRYPTO_LIBRARY is not set. Python passes the path of
/// the copy beside it. Has no effect once the library is loaded.
void set_crypto_library_path(const std::string& path);

}  // namespace vccl
