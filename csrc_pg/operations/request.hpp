// One call of the process group, as its methods pass it on to be launched.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "csrc_device/runtime/event.hpp"
#include "recorder/flight_entry.hpp"

namespace vccl {

struct Request {
  c10d::OpType type;
  const char* name;  // "all_reduce"
  c10::Device device;
  std::vector<at::Tensor> inputs, outputs;
  std::chrono::milliseconds timeout;
  bool async;
  std::vector<vdev::Event> after = {};  // CPU only: points of other streams that the operation waits for
  bool blocks_host = false;
  std::vector<std::int64_t> input_splits = {}, output_splits = {};  // all_to_all
  int peer = -1;  // for a message, the rank at its other end; -1 for any rank
  int tag = 0;    // of a message
  int root = -1;  // of a collective that has one, as the group numbers ranks
  FlightReduction reduction = FlightReduction::none;
  double factor = 1;                 // of a PREMUL_SUM; NaN if only the card knows it
  std::uint64_t place_in_order = 0;  // see FlightEntry
  bool stacks_outputs = false;       // see WorkVccl::Description

  bool is_message() const {
    return type == c10d::OpType::SEND || type == c10d::OpType::RECV || type == c10d::OpType::RECVANYSOURCE;
  }
};

/// Notes the reduction in the request.
void set_reduction(Request& request, const c10d::ReduceOp& op);

/// Returns the request of a collective whose tensors are on one device, and of which there is at least one.
template <class Options>
Request request_of(c10d::OpType type, const char* name, std::vector<at::Tensor> inputs,
                   std::vector<at::Tensor> outputs, const Options& options) {
  const c10::Device device = (inputs.empty() ? outputs : inputs).front().device();
  Request request{type,           name, device, std::move(inputs), std::move(outputs), options.timeout,
                  options.asyncOp};
  if constexpr (requires { options.rootRank; }) request.root = static_cast<int>(options.rootRank);
  if constexpr (requires { options.reduceOp; }) set_reduction(request, options.reduceOp);
  return request;
}

}  // namespace vccl
