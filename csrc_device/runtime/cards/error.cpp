#include "csrc_device/runtime/error.hpp"

#include "base/text.hpp"
#include "csrc_device/runtime/environment.hpp"

namespace vdev {

BadFork::BadFork()
    : CardError(base::text("Cannot re-initialize ", device_title(), " in forked subprocess. To use ",
                           device_title(), " with multiprocessing, you must use the 'spawn' start method")) {}

}  // namespace vdev
