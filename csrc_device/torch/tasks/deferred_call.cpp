#include "csrc_device/torch/tasks/deferred_call.hpp"

#include <ATen/ops/copy_native.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>

#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/torch/allocator.hpp"
#include "csrc_device/torch/checks/poisoned_cards.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/facts/operator_facts.hpp"
#include "csrc_device/torch/kernels/argument_tensors.hpp"
#include "csrc_device/torch/kernels/kernel_call.hpp"
#include "csrc_device/torch/kernels/spoiled_tensors.hpp"
#include "csrc_device/torch/memory/cpu_allocator.hpp"
#include "csrc_device/torch/streams.hpp"
#include "csrc_device/torch/threads/interpreter.hpp"

namespace vdev {
namespace {

at::Tensor tensor_over(c10::DataPtr data, const ResultLayout& layout, c10::Allocator* allocator,
                       c10::DispatchKey key) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), layout.bytes,
                                                         std::move(data), allocator,
                                                         /*resizable=*/allocator != nullptr)),
      c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(layout.type));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(layout.sizes, layout.strides);
  return tensor;
}

// Calls `visit` with the tensors that are new, in the order of KnownCall::results.
template <class Visit>
void for_each_new_result(const OperatorFacts& facts, const torch::jit::Stack& results, const Visit& visit) {
  std::size_t number = 0;
  const auto* first = results.data() + (results.size() - facts.returned_argument.size());
  for (std::size_t i = 0; i < facts.returned_argument.size(); ++i) {
    if (facts.returned_argument[i] >= 0) continue;
    if (first[i].isTensor()) {
      visit(number++, first[i].toTensor());
    } else {
      for (const at::Tensor& tensor : first[i].toTensorList()) visit(number++, tensor);
    }
  }
}

// Holds the sizes of the out= arguments of a call. A kernel that finds other ones right would leave results
// that the program looks for elsewhere.
class SizesOfOutputs {
 public:
  SizesOfOutputs(const OperatorFacts& facts, const torch::jit::Stack& arguments) {
    if (!facts.writes) return;
    for (const ArgumentSlot& slot : facts.slots) {
      if (!slot.out) continue;
      for_each_tensor(arguments[slot.index], [this](const at::Tensor& tensor) {
        if (tensor.defined()) outputs_.push_back({tensor, tensor.sizes().vec(), tensor.strides().vec()});
      });
    }
  }

  // Gives the arguments their sizes back, with which later calls find them. Returns what differed, or
  // nothing.
  std::string restore() {
    std::string difference;
    for (const auto& [tensor, sizes, strides] : outputs_) {
      if (tensor.sizes().equals(sizes) && tensor.strides().equals(strides)) continue;
      difference = c10::str("out= of ", tensor.sizes(), " in place of ", at::IntArrayRef(sizes));
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, tensor.storage_offset());
    }
    return difference;
  }

 private:
  struct Output {
    at::Tensor tensor;
    std::vector<std::int64_t> sizes, strides;
  };
  c10::SmallVector<Output, 2> outputs_;
};

// Raises that the task's results are not those that the program was given. From now on, the operator runs at
// its call.
[[noreturn]] void raise_misprediction(const OperatorFacts& facts, const std::string& difference) {
  facts.mispredicted.store(true, std::memory_order_relaxed);
  TORCH_CHECK(false, facts.name, " gave another result than an equal call before: ", difference,
              ". Its results are undefined. From now on this operator runs at its call in this process, so a "
              "repetition of the call is right. Please report the operator.");
}

std::string text_of(const at::Tensor& tensor) {
  return tensor.defined() ? c10::str(tensor.scalar_type(), " ", tensor.sizes()) : "none";
}

std::string text_of(const ResultLayout& layout) {
  return layout.defined ? c10::str(layout.type, " ", at::IntArrayRef(layout.sizes)) : "none";
}

}  // namespace

DeferredCall::DeferredCall(const c10::OperatorHandle& op, c10::DispatchKey kernel, int card,
                           KnownCallPtr known, torch::jit::Stack arguments, ArgumentDraw draw)
    : op_(op),
      kernel_(kernel),
      card_(card),
      known_(std::move(known)),
      arguments_(std::move(arguments)),
      draw_(std::move(draw)),
      line_(environment().launch_trace ? interpreter().line().text() : "") {}

DeferredCall::~DeferredCall() {
  if (known_->has_frames) known_->frames.give_back(std::move(arguments_));
}

DeferredCall::Tensors DeferredCall::make_results() {
  Tensors results;
  results.reserve(known_->results.size());
  places_.reserve(known_->results.size());
  for (const ResultLayout& layout : known_->results) {
    if (!layout.defined) {
      places_.push_back(nullptr);
      results.emplace_back();
      continue;
    }
    auto data = allocate_on(card_, layout.bytes);
    places_.push_back(data.get());
    results.push_back(tensor_over(std::move(data), layout, device_allocator(), dense_key()));
  }
  return results;
}

void DeferredCall::run() {
  const TaskKernelScope scope(state_);
  try {
    const bool lend = known_->lends.load(std::memory_order_relaxed);
    try {
      attempt(lend);
    } catch (const c10::Error& error) {
      // The kernels that ask for oneDNN's memory write nothing but their results, so they may run again.
      if (!lend || facts_of(op_).writes || !is_refused_loan(error.what())) throw;
      known_->lends.store(false, std::memory_order_relaxed);
      attempt(false);
    }
  } catch (c10::Error& error) {
    const std::string where = !line_.empty() ? "; it was called at " + line_
                              : environment().launch_trace
                                  ? ""
                                  : "; VDEV_LAUNCH_TRACE=1 names the line of the call";
    error.add_context(c10::str("raised by ", op_.operator_name().name, " on ", device_of(card_),
                               ", which ran after its call had returned", where,
                               ", and with VDEV_LAUNCH=blocking the call raises"));
    const bool out_of_memory = dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr;
    if (environment().strict && !out_of_memory) {
      poison(card_, error.what_without_backtrace());
      check_usable(card_);
    }
    throw;
  }
}

void DeferredCall::attempt(bool lend) {
  KernelMemory memory(card_, Queue::running());
  Loans loans;
  loans.reserve(places_.size());
  for (std::size_t i = 0; i < places_.size() && lend; ++i) {
    const ResultLayout& layout = known_->results[i];
    if (places_[i] == nullptr || layout.ordinal < 0) continue;
    memory.lend(loans.emplace_back(Loan{places_[i], layout.bytes, layout.ordinal}));
  }
  UseKernelMemory use(memory);
  torch::jit::Stack stack(arguments_);
  if (draw_) stack[draw_->first] = draw_->second.generator();
  const bool any_spoiled = SpoiledMemory::any();
  if (any_spoiled) {
    if (const auto failure = find_spoiled_argument(op_, stack)) return give_up_part(*this, failure);
  }
  const auto overwritten = any_spoiled ? check_arguments(op_, stack) : std::vector<at::Tensor>();
  SizesOfOutputs outputs(facts_of(op_), arguments_);
  run_kernel(op_, kernel_, facts_of(op_).in_float32, stack);
  if (const std::string difference = outputs.restore(); !difference.empty()) [[unlikely]]
    raise_misprediction(facts_of(op_), difference);
  put_in_place(stack, loans);
  for (const auto& tensor : overwritten) renew(tensor);
  stack.clear();
  TORCH_INTERNAL_ASSERT(std::ranges::none_of(loans, &Loan::lent), op_.operator_name(),
                        " keeps the memory of its result");
}

at::Tensor DeferredCall::place_of(std::size_t result) const {
  return tensor_over(c10::DataPtr(places_[result], c10::Device(c10::DeviceType::CPU)),
                     known_->results[result], nullptr, c10::DispatchKey::CPU);
}

// Copies the results that the kernel did not put where they were expected.
void DeferredCall::put_in_place(const torch::jit::Stack& results, const Loans& loans) const {
  c10::SmallVector<std::pair<std::size_t, at::Tensor>, 2> misplaced;
  const auto lies_in_loan = [&](const at::Tensor& tensor) {
    return std::ranges::any_of(loans, [&](const Loan& loan) { return loan.data == tensor.storage().data(); });
  };
  std::size_t count = 0;
  for_each_new_result(facts_of(op_), results, [&](std::size_t i, const at::Tensor& result) {
    ++count;
    if (i >= known_->results.size()) return;
    const ResultLayout& layout = known_->results[i];
    const bool same =
        result.defined() == layout.defined &&
        (!result.defined() || (result.sizes().equals(layout.sizes) && result.scalar_type() == layout.type));
    if (!same) [[unlikely]]
      raise_misprediction(facts_of(op_), c10::str(text_of(result), " in place of ", text_of(layout)));
    if (!result.defined() || result.numel() == 0) return;
    if (SpoiledMemory::any()) spoiled_memory().renew(places_[i], layout.bytes);
    if (result.const_data_ptr() == places_[i] && result.strides().equals(layout.strides)) return;
    misplaced.emplace_back(i, lies_in_loan(result) ? result.clone() : result);
  });
  if (count != known_->results.size()) [[unlikely]]
    raise_misprediction(facts_of(op_), c10::str(count, " tensors in place of ", known_->results.size()));
  for (const auto& [number, result] : misplaced) {
    at::Tensor place = place_of(number);
    at::native::copy_(place, result, /*non_blocking=*/false);
  }
}

void DeferredCall::give_up(const FailurePtr& failure) {
  for (const auto& tensor : written_arguments(op_, arguments_)) spoil(tensor, failure);
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (places_[i] != nullptr) spoiled_memory().spoil(places_[i], known_->results[i].bytes, failure);
  }
}

}  // namespace vdev
