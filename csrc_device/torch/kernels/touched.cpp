#include "csrc_device/torch/kernels/touched.hpp"

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/kernels/host_memory.hpp"
#include "csrc_device/torch/kernels/tensor_parts.hpp"

namespace vdev::races {

void Tensors::add(const at::Tensor& tensor, bool writes) {
  for_each_dense(tensor, [&](const at::Tensor& dense) {
    if (is_card(dense.device()))
      on_cards_.emplace_back(dense, writes);
    else if (is_followed(dense))
      on_host_.emplace_back(dense, writes);
  });
}

void record_call(int card, Site site, const Tensors& tensors) {
  if (!tensors.on_host().empty()) host_access(site, tensors.on_host());
  access(*current_stream(card), site, tensors.on_cards());
}

}  // namespace vdev::races
