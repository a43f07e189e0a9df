#include "csrc_pg/plan.hpp"

#include <algorithm>
#include <cstring>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

namespace vccl {
namespace {

// A CPU tensor over the view's memory: card memory is host memory, so the CPU's copy kernel serves both.
at::Tensor as_cpu_tensor(const View& view) {
  return at::from_blob(view.data, view.sizes, view.strides, at::TensorOptions().dtype(view.type));
}

}  // namespace

View View::of(const at::Tensor& tensor) {
  View view;
  view.data = tensor.data_ptr();
  view.type = tensor.scalar_type();
  view.sizes = at::DimVector(tensor.sizes());
  view.strides = at::DimVector(tensor.strides());
  view.contiguous = tensor.is_contiguous();
  view.bytes = tensor.nbytes();
  return view;
}

void copy_elements(const View& to, const View& from) {
  if (to.bytes == 0) return;
  if (to.contiguous && from.contiguous) {
    std::memcpy(to.data, from.data, to.bytes);
    return;
  }
  at::AutoDispatchBelowAutograd no_autograd;
  // Scratch memory is flat: it takes the shape of the other side.
  auto target = as_cpu_tensor(to);
  auto source = as_cpu_tensor(from);
  if (from.contiguous)
    source = source.view(to.sizes);
  else
    target = target.view(from.sizes);
  target.copy_(source);
}

at::Tensor Plan::scratch(const at::Tensor& like, std::int64_t elements) {
  auto tensor = at::empty({elements}, like.options());
  keep(tensor);
  return tensor;
}

const void* Plan::read(const at::Tensor& tensor) {
  keep(tensor);
  if (tensor.is_contiguous()) return tensor.data_ptr();
  const auto flat = scratch(tensor, tensor.numel());
  before_.push_back({View::of(flat), View::of(tensor)});
  return flat.data_ptr();
}

void* Plan::write(const at::Tensor& tensor) {
  keep(tensor);
  if (tensor.is_contiguous()) return tensor.data_ptr();
  const auto flat = scratch(tensor, tensor.numel());
  after_.push_back({View::of(tensor), View::of(flat)});
  return flat.data_ptr();
}

void* Plan::update(const at::Tensor& tensor) {
  keep(tensor);
  if (tensor.is_contiguous()) return tensor.data_ptr();
  const auto flat = scratch(tensor, tensor.numel());
  before_.push_back({View::of(flat), View::of(tensor)});
  after_.push_back({View::of(tensor), View::of(flat)});
  return flat.data_ptr();
}

void* Plan::write_all(const std::vector<at::Tensor>& tensors) {
  const auto& first = tensors.front();
  for (const auto& tensor : tensors) keep(tensor);

  // The parts of one buffer, as torch.chunk and FSDP make them, are one buffer: nothing to copy.
  auto* next = static_cast<std::byte*>(first.data_ptr());
  const bool adjacent = std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    const bool follows = tensor.is_contiguous() && tensor.data_ptr() == next;
    next += tensor.nbytes();
    return follows;
  });
  if (adjacent) return first.data_ptr();

  const auto each = first.numel();
  const auto flat = scratch(first, each * static_cast<std::int64_t>(tensors.size()));
  for (std::size_t i = 0; i < tensors.size(); ++i)
    after_.push_back(
        {View::of(tensors[i]), View::of(flat.narrow(0, static_cast<std::int64_t>(i) * each, each))});
  return flat.data_ptr();
}

void Plan::run(Communicator& communicator, Milliseconds timeout) const {
  for (const auto& copy : before_) copy_elements(copy.to, copy.from);
  // One deadline for all calls of a coalesced collective: it is one operation to its caller.
  const auto deadline = Deadline::in(timeout);
  for (const auto& call : calls_) vccl::run(communicator, call, deadline);
  for (const auto& copy : after_) copy_elements(copy.to, copy.from);
}

}  // namespace vccl
