#include "csrc_device/torch/kernels/touched.hpp"

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/kernels/host_memory.hpp"
#include "csrc_device/torch/kernels/tensor_parts.hpp"

namespace vdev::races {

namespace {

// A call may be given one tensor as an argument and as out=. Then it writes the tensor, and a race is one
// race.
void add_to(std::vector<Touched>& list, Touched touched) {
  constexpr std::size_t long_list = 16;  // of an optimizer, which has each tensor once
  const bool writes = touched.access.writes;
  for (Touched& other : list) {
    if (list.size() > long_list || other.access.writes == writes || other.raw != touched.raw) continue;
    if (!other.access.memory.covers(touched.access.memory) ||
        !touched.access.memory.covers(other.access.memory))
      continue;
    other.access.writes = other.access.reads_first = true;
    return;
  }
  list.push_back(std::move(touched));
}

}  // namespace

void Tensors::add(const at::Tensor& tensor, bool writes, bool reads_first) {
  for_each_dense(tensor, [&](const at::Tensor& dense) {
    if (is_card(dense.device())) {
      Touched touched(dense, writes);
      touched.access.reads_first = reads_first;
      add_to(on_cards_, std::move(touched));
    } else if (is_followed(dense))
      add_to(on_host_, touched_on_host(dense, writes));
  });
}

void record_call(int card, Site site, const Tensors& tensors) {
  if (!tensors.on_host().empty()) host_access(site, tensors.on_host());
  access(*current_stream(card), site, tensors.on_cards());
}

}  // namespace vdev::races
