#include "include/vccl/device.hpp"

#include <ATen/autocast_mode.h>

#include <cstdlib>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/device/hooks.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/errors.hpp"
#include "csrc_device/torch/gil.hpp"
#include "csrc_device/torch/streams.hpp"

namespace vdev {

void initialize() {
  // The threads of streams must stop before static objects are destroyed. Python has its own way to do that.
  if (name_device()) std::atexit([] { shutdown(); });
}

const Keys& keys() {
  static const Keys keys{dense_key(), autograd_key(),
                         at::autocast::get_autocast_dispatch_key_from_device_type(device_type())};
  return keys;
}

void synchronize(int card) {
  WithoutGil without_gil;
  with_torch_errors([&] { synchronize_card(card); });
}

}  // namespace vdev
