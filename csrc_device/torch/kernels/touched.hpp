// What calls read and write, for the race detector (races/watch.hpp).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <vector>

#include "csrc_device/torch/races/watch.hpp"

namespace vdev::races {

/// Collects the tensors that one call touches. What lies on the host is kept apart, because the host reads it
/// within the call; of that, only memory is followed that streams have to do with (host_memory.hpp).
class Tensors {
 public:
  void read(const at::Tensor& tensor) { add(tensor, false); }
  void written(const at::Tensor& tensor) { add(tensor, true); }
  void add(const at::Tensor& tensor, bool writes, bool reads_first = false);

  const std::vector<Touched>& on_cards() const { return on_cards_; }
  const std::vector<Touched>& on_host() const { return on_host_; }

 private:
  std::vector<Touched> on_cards_, on_host_;
};

/// Records what a call gives to the calling thread's current stream on `card`, and what it reads on the host.
void record_call(int card, Site site, const Tensors& tensors);

}  // namespace vdev::races
