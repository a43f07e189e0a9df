// Where the program is, for errors that come later.
#pragma once

#include <string>

namespace vdev {

/// Returns "file.py:12 (function)" for the innermost line of Python on the calling thread that belongs
/// neither to torch nor to vccl. Without one, as on autograd's threads, returns "". Takes the GIL.
std::string python_line();

}  // namespace vdev
