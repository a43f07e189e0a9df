// Where the tests find libzmq: VCCL_ZMQ_LIBRARY, or the copy in the pyzmq wheel of the repository's own
// environment.
#pragma once

#include <glob.h>

#include <cstdlib>
#include <string>

#include "transport/connections/zmq_api.hpp"
#include "transport/libraries.hpp"

#if defined(__SANITIZE_THREAD__)
// libzmq is not built with the sanitizer: its own hand-over of messages between threads looks like races. Nor
// does the sanitizer see that libzmq closes a descriptor, whose number may then be that of a file that the
// named functions open.
extern "C" __attribute__((used, visibility("default"))) inline const char* __tsan_default_suppressions() {
  return "called_from_lib:libzmq\ncalled_from_lib:libsodium\nrace:open_descriptors\nrace:is_refused_at\n";
}
#endif

#if defined(__SANITIZE_ADDRESS__)
// libzmq 4.3 loses one decoder's buffer when a connection ends in the middle of a message, as it does when an
// operation is cut short. What the links themselves might lose is looked for by the test of repeated groups.
extern "C" __attribute__((used, visibility("default"))) inline const char* __lsan_default_suppressions() {
  return "leak:libzmq\n";
}
#endif

namespace vccl {

inline void find_zmq_for_tests() {
  if (std::getenv("VCCL_ZMQ_LIBRARY")) return;
  const std::string file = __FILE__;
  const std::string root = file.substr(0, file.rfind("tests/native/"));
  for (const std::string& environment : {root + ".venv", std::string(std::getenv("VIRTUAL_ENV") ?: root)}) {
    glob_t found{};
    const std::string pattern = environment + "/lib/python3*/site-packages/pyzmq.libs/libzmq*.so*";
    if (glob(pattern.c_str(), 0, nullptr, &found) == 0) set_zmq_library_path(found.gl_pathv[0]);
    globfree(&found);
  }
}

}  // namespace vccl
