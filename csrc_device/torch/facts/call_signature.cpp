#include "csrc_device/torch/facts/call_signature.hpp"

#include <ATen/Context.h>
#include <ATen/core/List.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/kernels/argument_tensors.hpp"
#include "csrc_device/torch/kernels/cpu_view.hpp"

namespace vdev {
namespace {

// The first word of every argument, which says what follows. A list says how many elements follow.
enum Mark : std::int64_t {
  kNone,
  kUndefined,
  kTensors,
  kBool,
  kInt,
  kDouble,
  kComplex,
  kInts,
  kBools,
  kValues,
  kText
};

// The table is emptied when it gets larger, which a program with shapes of all kinds may cause.
constexpr std::size_t kMostSignatures = 1 << 16;

std::int64_t switches() {
  const auto& context = at::globalContext();
  return static_cast<std::int64_t>(context.deterministicAlgorithms()) |
         static_cast<std::int64_t>(context.deterministicFillUninitializedMemory()) << 1 |
         static_cast<std::int64_t>(context.userEnabledMkldnn()) << 2 |
         static_cast<std::int64_t>(c10::GradMode::is_enabled()) << 3 |
         static_cast<std::int64_t>(c10::InferenceMode::is_enabled()) << 4 |
         static_cast<std::int64_t>(c10::get_default_dtype_as_scalartype()) << 8;
}

struct HashOfSignature {
  std::size_t operator()(const CallSignature& signature) const { return signature.hash(); }
};

struct Table {
  std::mutex mutex;
  std::unordered_map<CallSignature, KnownCallPtr, HashOfSignature> calls;
};

// Leaked, because tensors are computed until the process ends.
Table& table() {
  static auto& one = *new Table;
  return one;
}

}  // namespace

CallSignature::CallSignature(const c10::OperatorHandle& op, const OperatorFacts& facts,
                             c10::DispatchKey kernel, c10::ArrayRef<c10::IValue> arguments) {
  valid_ = facts.is_regular(arguments);
  if (!valid_) return;
  add(std::bit_cast<std::int64_t>(&op.schema()));
  add(static_cast<std::int64_t>(kernel) | switches() << 16);
  std::size_t slot = 0;
  for (std::size_t i = 0; i < arguments.size() && valid_; ++i) {
    if (slot < facts.slots.size() && facts.slots[slot].index == i) {
      add_slot(arguments[i], facts.slots[slot++]);
    } else {
      add_value(arguments[i], facts.value_matters[i]);
    }
  }
  // The multiplication and the rotation mix each word into all bits (the scheme of FNV, by words).
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const std::int64_t word : words_) {
    hash = std::rotl((hash ^ static_cast<std::uint64_t>(word)) * 0x9e3779b97f4a7c15ULL, 29);
  }
  hash_ = hash;
}

void CallSignature::add(const at::Tensor& tensor, bool allow_cpu) {
  if (!tensor.defined()) return add(kUndefined);
  const bool on_card = is_card(tensor.device());
  // The host may change a tensor on the CPU before the kernel runs. Numbers are copied.
  const bool readable = on_card || (tensor.is_cpu() && tensor.dim() == 0 && !allow_cpu);
  const bool plain = tensor.layout() == at::kStrided && !tensor.is_nested() && !tensor.is_quantized() &&
                     !tensor._is_zerotensor() && tensor.has_storage();
  if (!readable || !plain) {
    valid_ = false;
    return;
  }
  const auto* impl = tensor.unsafeGetTensorImpl();
  add(static_cast<std::int64_t>(tensor.scalar_type()) | static_cast<std::int64_t>(on_card) << 8 |
      static_cast<std::int64_t>(tensor.is_conj()) << 9 | static_cast<std::int64_t>(tensor.is_neg()) << 10 |
      static_cast<std::int64_t>(impl->is_wrapped_number()) << 11 | impl->dim() << 16);
  const auto sizes = impl->sizes();
  const auto strides = impl->strides();
  words_.append(sizes.begin(), sizes.end());
  words_.append(strides.begin(), strides.end());
  add(impl->storage_offset());
  if (on_card) add_overlap(tensor.storage().unsafeGetStorageImpl());
}

// Kernels refuse to write to memory that another argument shows otherwise. The search is bounded because of
// the long lists of optimizers.
void CallSignature::add_overlap(const c10::StorageImpl* storage) {
  constexpr std::size_t looked_at = 8;
  const auto found = std::ranges::find(storages_, storage);
  add(found - storages_.begin());
  if (found != storages_.end()) return;
  if (storages_.size() < looked_at)
    storages_.push_back(storage);
  else
    knows_overlaps_ = false;
}

void CallSignature::add_slot(const c10::IValue& argument, const ArgumentSlot& slot) {
  if (argument.isNone() || slot.kind == ArgumentKind::generator) return add(kNone);
  switch (slot.kind) {
    case ArgumentKind::tensor:
      return add(argument.toTensor(), slot.allow_cpu);
    case ArgumentKind::tensor_list:
      add(kTensors);
      add(static_cast<std::int64_t>(argument.toListRef().size()));
      for (const at::Tensor& tensor : argument.toTensorList()) add(tensor, slot.allow_cpu);
      return;
    case ArgumentKind::optional_tensor_list:
      add(kTensors);
      add(static_cast<std::int64_t>(argument.toListRef().size()));
      for (const std::optional<at::Tensor>& tensor : argument.toOptionalTensorList()) {
        if (!tensor.has_value()) {
          add(kNone);
          continue;
        }
        add(*tensor, false);
        // Such an index takes as many elements as it has true ones.
        const auto type = tensor->defined() ? tensor->scalar_type() : at::kLong;
        if (type == at::kBool || type == at::kByte) valid_ = false;
      }
      return;
    case ArgumentKind::device:
      // Factories are given the device; they need not be asynchronous.
      valid_ = false;
      return;
    case ArgumentKind::generator:
      return;
  }
}

void CallSignature::add_value(const c10::IValue& argument, bool value_matters) {
  if (argument.isNone()) return add(kNone);
  const auto word = [&](Mark mark, std::int64_t value) {
    add(mark);
    if (value_matters) add(value);
  };
  const auto list = [&](Mark mark, const auto& values) {
    add(mark);
    add(static_cast<std::int64_t>(values.size()));
    for (const auto value : values) add(static_cast<std::int64_t>(value));
  };
  if (argument.isBool()) {
    word(kBool, argument.toBool());
  } else if (argument.isInt()) {
    word(kInt, argument.toInt());
  } else if (argument.isDouble()) {
    word(kDouble, std::bit_cast<std::int64_t>(argument.toDouble()));
  } else if (argument.isComplexDouble() && !value_matters) {
    add(kComplex);
  } else if (argument.isIntList()) {
    list(kInts, argument.toIntVector());
  } else if (argument.isBoolList()) {
    list(kBools, argument.toBoolList().vec());
  } else if (argument.isString()) {
    list(kText, argument.toStringRef());
  } else if (argument.isList() && !value_matters) {
    add(kValues);
    add(static_cast<std::int64_t>(argument.toListRef().size()));
    for (const c10::IValue& value : argument.toListRef()) add_value(value, false);
  } else {
    valid_ = false;
  }
}

namespace {

// Returns whether nobody else holds a tensor of the arguments, or the memory of one. False for lists.
bool are_unshared(const torch::jit::Stack& arguments) {
  c10::SmallVector<const at::Tensor*, 8> tensors;
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensorList() || argument.isOptionalTensorList()) return false;
    if (argument.isTensor() && argument.toTensor().defined()) tensors.push_back(&argument.toTensor());
  }
  return std::ranges::all_of(tensors, [&](const at::Tensor* tensor) {
    const auto* storage = tensor->storage().unsafeGetStorageImpl();
    const auto users = std::ranges::count_if(
        tensors, [&](const at::Tensor* other) { return other->storage().unsafeGetStorageImpl() == storage; });
    return tensor->use_count() == 1 && !CpuView::keeps_memory(*tensor) &&
           tensor->storage().use_count() == static_cast<std::size_t>(users);
  });
}

}  // namespace

torch::jit::Stack ArgumentFrames::take() {
  std::lock_guard lock(mutex_);
  if (free_.empty()) return {};
  torch::jit::Stack arguments = std::move(free_.back());
  free_.pop_back();
  return arguments;
}

void ArgumentFrames::give_back(torch::jit::Stack arguments) {
  constexpr std::size_t most = 256;
  if (!are_unshared(arguments)) return;
  std::lock_guard lock(mutex_);
  if (free_.size() < most) free_.push_back(std::move(arguments));
}

void ArgumentChanges::add(std::size_t index, const at::Tensor& before, const at::Tensor& after) {
  if (CpuView::unchanged(before, after)) return;
  const bool only_resized = before.has_storage() && after.has_storage() &&
                            before.is_conj() == after.is_conj() && before.is_neg() == after.is_neg() &&
                            before.storage_offset() == after.storage_offset() &&
                            !before.sizes().equals(after.sizes()) && after.is_non_overlapping_and_dense();
  are_known = are_known && only_resized;
  if (are_known) resized.push_back({index, after.sizes().vec(), after.strides().vec()});
}

void ArgumentChanges::add_of_list(const at::Tensor& before, const at::Tensor& after) {
  are_known = are_known && CpuView::unchanged(before, after);
}

KnownCallPtr find_known_call(const CallSignature& signature) {
  Table& all = table();
  std::lock_guard lock(all.mutex);
  const auto found = all.calls.find(signature);
  return found == all.calls.end() ? nullptr : found->second;
}

void forget_calls() {
  Table& all = table();
  std::lock_guard lock(all.mutex);
  all.calls.clear();
}

namespace {

// Collects what results look like, and finds out whether they can be made ahead.
class Look {
 public:
  Look(c10::ArrayRef<c10::IValue> shown, const KernelMemory& memory) : memory_(memory) {
    for (const c10::IValue& argument : shown) {
      for_each_tensor(argument, [this](const at::Tensor& tensor) {
        if (tensor.defined() && tensor.has_storage())
          storages_.insert(tensor.storage().unsafeGetStorageImpl());
      });
    }
  }

  // Returns false if the result cannot be made ahead.
  bool add(const at::Tensor& result, std::vector<ResultLayout>& layouts) {
    ResultLayout& layout = layouts.emplace_back();
    if (!result.defined()) return true;
    if (!result.is_cpu() || result.layout() != at::kStrided || result.is_nested() || result.is_quantized() ||
        result._is_zerotensor() || result.is_conj() || result.is_neg() || !result.has_storage() ||
        result.storage_offset() != 0 || !storages_.insert(result.storage().unsafeGetStorageImpl()).second)
      return false;
    layout.defined = true;
    layout.type = result.scalar_type();
    layout.sizes = result.sizes().vec();
    layout.strides = result.strides().vec();
    layout.bytes = result.storage().nbytes();
    layout.ordinal = memory_.ordinal_of(result.storage().data(), layout.bytes);
    return true;
  }

 private:
  const KernelMemory& memory_;
  std::unordered_set<const c10::StorageImpl*> storages_;
};

}  // namespace

KnownCallPtr learn_call(const CallSignature& signature, const OperatorFacts& facts,
                        c10::ArrayRef<c10::IValue> shown, c10::ArrayRef<c10::IValue> results,
                        const KernelMemory& memory, ArgumentChanges changes) {
  auto call = std::make_shared<KnownCall>();
  call->predictable = changes.are_known && changes.resized.empty();
  call->has_frames = signature.knows_overlaps();
  Look look(shown, memory);
  for (std::size_t i = 0; i < results.size(); ++i) {
    call->list_sizes.push_back(-1);
    if (facts.returned_argument[i] >= 0) continue;
    if (results[i].isTensor()) {
      call->predictable &= look.add(results[i].toTensor(), call->results);
    } else if (results[i].isTensorList()) {
      const auto tensors = results[i].toTensorList();
      call->list_sizes.back() = static_cast<int>(tensors.size());
      for (const at::Tensor& tensor : tensors) call->predictable &= look.add(tensor, call->results);
    } else {
      call->predictable = false;
    }
  }
  // What is resized is an out= argument, beside which an operator has no results of its own.
  if (changes.are_known && call->results.empty()) call->resized = std::move(changes.resized);
  Table& all = table();
  std::lock_guard lock(all.mutex);
  if (all.calls.size() >= kMostSignatures) all.calls.clear();
  return all.calls.try_emplace(signature, std::move(call)).first->second;
}

}  // namespace vdev
