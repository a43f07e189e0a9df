#include "csrc_pg/tasks/collective_plan.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "base/text.hpp"
#include "csrc_device/runtime/spoiled_memory.hpp"
#include "csrc_device/torch/allocator.hpp"
#include "csrc_device/torch/races.hpp"
#include "csrc_pg/collectives/run.hpp"
#include "csrc_pg/operations/errors.hpp"
#include "csrc_pg/operations/faults_of_call.hpp"
#include "csrc_pg/operations/program_checks.hpp"

namespace vccl {
namespace {

// Returns a CPU tensor over the view's memory. Card memory is host memory, so the CPU's copy kernel serves
// both.
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

vdev::StridedMemory View::memory() const {
  return {data, c10::elementSize(type), {sizes.data(), sizes.size()}, {strides.data(), strides.size()}};
}

void copy_elements(const View& to, const View& from) {
  if (to.bytes == 0) return;
  if (to.contiguous && from.contiguous) {
    std::memcpy(to.data, from.data, to.bytes);
    return;
  }
  at::AutoDispatchBelowAutograd no_autograd;
  // Scratch memory is flat, so it takes the shape of the other side.
  auto target = as_cpu_tensor(to);
  auto source = as_cpu_tensor(from);
  if (from.contiguous)
    source = source.view(to.sizes);
  else
    target = target.view(from.sizes);
  target.copy_(source);
}

void CollectivePlan::keep(const at::Tensor& tensor, Use use) {
  storages_.push_back(tensor.storage());
  if (!vdev::races::is_on()) [[likely]]
    return;
  if (tensor.is_cpu()) vdev::races::follow(tensor);
  touched_.add(tensor, use == Use::write);
}

at::Tensor CollectivePlan::scratch(const at::Tensor& like, std::int64_t elements) {
  auto tensor = at::empty({elements}, like.options());
  scratch_.push_back(tensor.storage());
  return tensor;
}

void CollectivePlan::leave_memory_to_stream(HeldMemory* held) {
  std::erase_if(storages_, [&](const c10::Storage& storage) {
    if (vdev::goes_with_last_owner(storage.data_ptr())) return false;
    if (held) held->add(storage);
    return true;
  });
  if (!held) scratch_.clear();  // the plan runs on the stream that gets the memory next
}

void CollectivePlan::hold_memory_in(std::shared_ptr<HeldMemory> held) {
  leave_memory_to_stream(held.get());
  held_ = std::move(held);
}

const void* CollectivePlan::read(const at::Tensor& tensor) {
  keep(tensor, Use::read);
  if (tensor.is_contiguous()) {
    add_bytes(inputs_, tensor);
    return tensor.data_ptr();
  }
  const auto flat = scratch(tensor, tensor.numel());
  before_.push_back({View::of(flat), View::of(tensor)});
  return flat.data_ptr();
}

void* CollectivePlan::write(const at::Tensor& tensor) {
  keep(tensor, Use::write);
  if (tensor.is_contiguous()) {
    add_bytes(outputs_, tensor);
    return tensor.data_ptr();
  }
  const auto flat = scratch(tensor, tensor.numel());
  after_.push_back({View::of(tensor), View::of(flat)});
  return flat.data_ptr();
}

void* CollectivePlan::update(const at::Tensor& tensor) {
  keep(tensor, Use::write);
  if (tensor.is_contiguous()) {
    add_bytes(inputs_, tensor);
    add_bytes(outputs_, tensor);
    return tensor.data_ptr();
  }
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

// Returns whether the tensors lie one after the other in one buffer, as torch.chunk and FSDP make them, and
// sets `buffer` to its beginning. Then nothing needs to be copied. Empty tensors may lie anywhere.
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

// Calls `function` with each tensor and with its place in the scratch memory `flat`.
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

const void* CollectivePlan::read_all(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) keep(tensor, Use::read);
  void* buffer = nullptr;
  if (one_buffer(tensors, buffer)) {
    for (const auto& tensor : tensors) add_bytes(inputs_, tensor);
    return buffer;
  }
  const auto flat = scratch(tensors.front(), elements_of(tensors));
  each_in(flat, tensors, [&](const View& tensor, const View& place) { before_.push_back({place, tensor}); });
  return flat.data_ptr();
}

void* CollectivePlan::write_all(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) keep(tensor, Use::write);
  void* buffer = nullptr;
  if (one_buffer(tensors, buffer)) {
    for (const auto& tensor : tensors) add_bytes(outputs_, tensor);
    return buffer;
  }
  const auto flat = scratch(tensors.front(), elements_of(tensors));
  each_in(flat, tensors, [&](const View& tensor, const View& place) { after_.push_back({tensor, place}); });
  return flat.data_ptr();
}

std::span<const std::size_t> CollectivePlan::counts(std::vector<std::size_t> counts) {
  // Moving a vector does not move its elements.
  return counts_.emplace_back(std::move(counts));
}

void CollectivePlan::add(const Call& call, const at::Tensor& factor) {
  keep(factor, Use::read);
  factors_.push_back({calls_.size(), View::of(factor)});
  calls_.push_back(call);
}

void CollectivePlan::drop_empty_calls() {
  const auto is_empty = [](const Call& call) {
    const bool of_messages = call.collective == Collective::all_to_all ||
                             call.collective == Collective::gather ||
                             call.collective == Collective::scatter || call.collective == Collective::barrier;
    const auto none = [](std::span<const std::size_t> counts) {
      return std::ranges::all_of(counts, [](std::size_t count) { return count == 0; });
    };
    return !of_messages && call.count == 0 && none(call.input_counts) && none(call.output_counts);
  };
  // The factors name their calls by number.
  if (factors_.empty() || std::ranges::all_of(calls_, is_empty)) {
    if (std::erase_if(calls_, is_empty) > 0) factors_.clear();
  }
}

void CollectivePlan::run_calls(Communicator& communicator, const Deadline& deadline) const {
  const CheckVariables& checks = program_checks();
  auto factor = factors_.begin();
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    Call call = calls_[i];
    if (factor != factors_.end() && factor->call == i) call.factor = number_in((factor++)->of);
    if (checks.content) call.checks |= kChecksContent;
    if (checks.order) call.checks |= kChecksOrder;
    call.order = order_;
    auto* const strikes = faults::ever_on() ? faults::Running::current() : nullptr;
    {
      const DamagedInput damaged(strikes, communicator, call);
      if (checks_nan_) call.refused = nonfinite_input(communicator, call, i, calls_.size());
      vccl::run(communicator, call, deadline);
    }
    damage_output(strikes, communicator, call);
    if (checks.nan_outputs) check_finite_output(communicator, call, i, calls_.size());
    if (checks.content) check_content(communicator, call, deadline, i, calls_.size());
  }
}

void CollectivePlan::copy_in() const {
  for (const auto& copy : before_) copy_elements(copy.to, copy.from);
}

void CollectivePlan::copy_out() const {
  for (const auto& copy : after_) copy_elements(copy.to, copy.from);
}

vdev::FailurePtr CollectivePlan::spoiled_input() const {
  auto& memory = vdev::spoiled_memory();
  for (const auto& bytes : inputs_)
    if (auto failure = memory.find(bytes.begin, bytes.size)) return failure;
  for (const auto& copy : before_)
    if (auto failure = memory.find(copy.from.memory())) return failure;
  for (const auto& factor : factors_)
    if (auto failure = memory.find(factor.of.memory())) return failure;
  return nullptr;
}

void CollectivePlan::spoil_outputs(const vdev::FailurePtr& failure) const {
  for (const auto& bytes : outputs_) vdev::spoiled_memory().spoil(bytes.begin, bytes.size, failure);
  for (const auto& copy : after_) vdev::spoiled_memory().spoil(copy.to.memory(), failure);
}

void CollectivePlan::renew_outputs() const {
  for (const auto& bytes : outputs_) vdev::spoiled_memory().renew(bytes.begin, bytes.size);
  for (const auto& copy : after_) vdev::spoiled_memory().renew(copy.to.memory());
}

void check_inputs(const CollectivePlan& plan, Communicator& communicator, const std::string& name) {
  const auto failure = plan.spoiled_input();
  if (!failure) return;
  communicator.check();  // if the communicator has failed, its own failure is the nearer cause
  const Error error(
      ErrorCode::aborted,
      base::text(communicator.own_text_in_group(), " did not run its ", name,
                 ", which reads what a failed operation should have written: ", text_of(failure->error())));
  communicator.fail(error.code(), error.what());
  throw error;
}

void run_with_faults(faults::Strikes& strikes, c10::function_ref<void()> run) {
  const faults::Running running(&strikes);
  strikes.strike(faults::Moment::before);
  const auto begin = Clock::now();
  run();
  const double more = strikes.slowness() - 1;
  if (more > 0) std::this_thread::sleep_for(more * std::chrono::duration<double>(Clock::now() - begin));
  strikes.strike(faults::Moment::after);
}

void CollectivePlan::run(Communicator& communicator, Milliseconds timeout) const {
  if (!faults_) [[likely]]
    return run_all(communicator, timeout);
  run_with_faults(*faults_, [&] { run_all(communicator, timeout); });
}

void CollectivePlan::run_all(Communicator& communicator, Milliseconds timeout) const {
  copy_in();
  // All calls of a coalesced collective share one deadline, because they are one operation to the caller.
  const auto deadline = Deadline::in(timeout);
  const bool hashes = hashed_ && !calls_.empty();
  const auto input = hashes ? hash_of_inputs(calls_, communicator) : 0;
  run_calls(communicator, deadline);
  if (hashes) hashed_.recorder->hashed(hashed_.number, input, hash_of_outputs(calls_, communicator));
  for (const auto& body : bodies_) body(communicator, deadline);
  copy_out();
}

}  // namespace vccl
