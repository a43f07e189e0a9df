// The choice of the libzmq library that the links between hosts load.
#pragma once

#include <string>

namespace vccl {

/// Sets the path that is tried first when VCCL_ZMQ_LIBRARY is not set. Python passes the path of the pyzmq
/// wheel's copy. Has no effect once the library is loaded.
void set_zmq_library_path(const std::string& path);

}  // namespace vccl
