#include "csrc_pg/operations/faults_of_call.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>

namespace vccl {
namespace {

bool has_elements(const std::vector<at::Tensor>& tensors) {
  return std::ranges::any_of(tensors, [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && tensor.numel() > 0;
  });
}

bool is_floating(const std::vector<at::Tensor>& tensors) {
  return !tensors.empty() && (at::isFloatingType(tensors.front().scalar_type()) ||
                              at::isComplexType(tensors.front().scalar_type()));
}

/// Returns the bytes of a NaN of the dtype: in each format that has the common form, all bits are set.
std::span<const std::byte> nan_of(Dtype dtype) {
  static const std::vector<std::byte> kOnes(16, std::byte{0xff});
  switch (kind_of(dtype)) {
    case DtypeKind::floating:
    case DtypeKind::narrow_float:
    case DtypeKind::complex:
      return std::span(kOnes).first(size_of(dtype));
    default:
      return {};
  }
}

std::span<std::byte> bytes_of(const void* data, std::size_t count, Dtype dtype) {
  if (!data) return {};
  // What a rank contributes is changed for the time of the operation.
  return {static_cast<std::byte*>(const_cast<void*>(data)), count * size_of(dtype)};
}

bool overlap(std::span<std::byte> a, std::span<std::byte> b) {
  const std::less<> before;
  return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) &&
         before(b.data(), a.data() + a.size());
}

}  // namespace

std::shared_ptr<faults::Strikes> faults_of_call(const Request& request, std::uint64_t sequence,
                                                const std::string& group, const std::string& description) {
  auto strikes =
      faults::decide({.op = request.name,
                      .group = group,
                      .description = description,
                      .sequence = sequence,
                      .reads = has_elements(request.inputs),
                      .writes = has_elements(request.outputs),
                      .floating = is_floating(request.inputs.empty() ? request.outputs : request.inputs)});
  if (strikes) strikes->strike_at_call();
  return strikes;
}

std::shared_ptr<faults::Strikes> faults_of_replay(const std::string& name, const std::string& group) {
  return faults::decide({.op = name, .group = group, .reads = true, .writes = true});
}

DamagedInput::DamagedInput(faults::Strikes* strikes, const Communicator& communicator, const Call& call) {
  if (!strikes) return;
  const Buffers buffers = buffers_of(call, communicator.rank(), communicator.size());
  const auto input = bytes_of(call.input, buffers.input, call.dtype);
  damage_ = strikes->damage(faults::Moment::before, input, size_of(call.dtype), nan_of(call.dtype));
  stays_ = overlap(input, bytes_of(call.output, buffers.output, call.dtype));
}

DamagedInput::~DamagedInput() {
  if (!stays_) damage_.undo();
}

void damage_output(faults::Strikes* strikes, const Communicator& communicator, const Call& call) {
  if (!strikes) return;
  const Buffers buffers = buffers_of(call, communicator.rank(), communicator.size());
  strikes->damage(faults::Moment::after, bytes_of(call.output, buffers.output, call.dtype),
                  size_of(call.dtype), nan_of(call.dtype));
}

faults::Damage damage_message(faults::Strikes* strikes, faults::Moment moment, std::span<std::byte> bytes,
                              Dtype dtype) {
  return strikes ? strikes->damage(moment, bytes, size_of(dtype), nan_of(dtype)) : faults::Damage();
}

}  // namespace vccl
