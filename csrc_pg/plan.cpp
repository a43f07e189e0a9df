#include "csrc_pg/plan.hpp"

#include <cstring>
#include <utility>

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

namespace {

std::int64_t elements_of(const std::vector<at::Tensor>& tensors) {
  std::int64_t sum = 0;
  for (const auto& tensor : tensors) sum += tensor.numel();
  return sum;
}

// The buffer that the tensors, one after the other, are, as torch.chunk and FSDP make them: nothing to copy.
// Empty ones lie anywhere. False: they do not lie so.
bool one_buffer(const std::vector<at::Tensor>& tensors, void*& buffer) {
  std::byte* next = nullptr;
  for (const auto& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    if (!tensor.is_contiguous()) return false;
    auto* data = static_cast<std::byte*>(tensor.data_ptr());
    if (!next)
      buffer = next = data;
    else if (data != next)
      return false;
    next += tensor.nbytes();
  }
  return true;
}

// The same elements in scratch memory: called with each tensor and its place there.
template <class Function>
void each_in(const at::Tensor& flat, const std::vector<at::Tensor>& tensors, const Function& function) {
  std::int64_t begin = 0;
  for (const auto& tensor : tensors) {
    function(View::of(tensor), View::of(flat.narrow(0, begin, tensor.numel())));
    begin += tensor.numel();
  }
}

double number_in(const View& view) {
  at::AutoDispatchBelowAutograd no_autograd;
  return as_cpu_tensor(view).item().toDouble();
}

}  // namespace

const void* Plan::read_all(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) keep(tensor);
  void* buffer = nullptr;
  if (one_buffer(tensors, buffer)) return buffer;
  const auto flat = scratch(tensors.front(), elements_of(tensors));
  each_in(flat, tensors, [&](const View& tensor, const View& place) { before_.push_back({place, tensor}); });
  return flat.data_ptr();
}

void* Plan::write_all(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) keep(tensor);
  void* buffer = nullptr;
  if (one_buffer(tensors, buffer)) return buffer;
  const auto flat = scratch(tensors.front(), elements_of(tensors));
  each_in(flat, tensors, [&](const View& tensor, const View& place) { after_.push_back({tensor, place}); });
  return flat.data_ptr();
}

std::span<const std::size_t> Plan::counts(std::vector<std::size_t> counts) {
  // Moving a vector leaves its elements where they are.
  return counts_.emplace_back(std::move(counts));
}

void Plan::add(const Call& call, const at::Tensor& factor) {
  keep(factor);
  factors_.push_back({calls_.size(), View::of(factor)});
  calls_.push_back(call);
}

void Plan::run_calls(Communicator& communicator, const Deadline& deadline) const {
  auto factor = factors_.begin();
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    Call call = calls_[i];
    if (factor != factors_.end() && factor->call == i) call.factor = number_in((factor++)->of);
    vccl::run(communicator, call, deadline);
  }
}

void Plan::copy_in() const {
  for (const auto& copy : before_) copy_elements(copy.to, copy.from);
}

void Plan::copy_out() const {
  for (const auto& copy : after_) copy_elements(copy.to, copy.from);
}

void Plan::run(Communicator& communicator, Milliseconds timeout) const {
  copy_in();
  // One deadline for all calls of a coalesced collective: it is one operation to its caller.
  const auto deadline = Deadline::in(timeout);
  run_calls(communicator, deadline);
  for (const auto& body : bodies_) body(communicator, deadline);
  copy_out();
}

}  // namespace vccl
