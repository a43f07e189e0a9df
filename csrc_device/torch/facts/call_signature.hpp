// What two calls of an operator must have in common to give results that look alike, and what is known of
// such calls.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc_device/torch/facts/operator_facts.hpp"
#include "csrc_device/torch/memory/kernel_memory.hpp"

namespace vdev {

/// Describes a result that owns its memory and begins at its start.
struct ResultLayout {
  bool defined = false;
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> sizes, strides;
  std::size_t bytes = 0;  // of its memory
  int ordinal = -1;       // of the kernel's request for the memory (Loan); -1 if that is not known
};

/// Says how a kernel has resized an argument that it writes (out=).
struct ResizedArgument {
  std::size_t index;
  std::vector<std::int64_t> sizes, strides;
};

/// Says what a kernel has changed of the arguments that it writes, besides elements.
struct ArgumentChanges {
  /// Whether it has changed nothing but the sizes and strides in `resized`, and memory that was too small.
  bool are_known = true;
  std::vector<ResizedArgument> resized;

  /// Adds what the kernel has changed of argument `index`, which it saw as `before` and left as `after`.
  void add(std::size_t index, const at::Tensor& before, const at::Tensor& after);
  /// Adds the same for a tensor of a list.
  void add_of_list(const at::Tensor& before, const at::Tensor& after);
};

/// Keeps the tensors that kernels have seen as the arguments of one signature, for later calls: making them
/// takes a third of the time of a launch. Thread-safe.
class ArgumentFrames {
 public:
  /// Returns arguments of an earlier call that has ended, or nothing.
  torch::jit::Stack take();
  /// Keeps arguments, unless there are enough of them or somebody else holds one of their tensors.
  void give_back(torch::jit::Stack arguments);

 private:
  std::mutex mutex_;
  std::vector<torch::jit::Stack> free_;
};

/// Says what calls with one signature do. Never changes, except for the mutable members.
struct KnownCall {
  /// Whether the results can be made before the kernel has run: the kernel changes no argument's sizes or
  /// memory, and no result shares memory with an argument or another result.
  bool predictable = false;
  /// The arguments that the kernel resizes. They can be resized before it runs: the call then equals one with
  /// arguments of these sizes.
  std::vector<ResizedArgument> resized;
  /// The results that are no arguments. Those of a list follow each other.
  std::vector<ResultLayout> results;
  /// The number of tensors of each result that is a list; -1 for a result that is one tensor or an argument.
  std::vector<int> list_sizes;
  /// Cleared when the kernel needed the memory of a loan for something else. Its results are then copied.
  /// Relaxed, because a kernel that meets the old value finds the same out again.
  mutable std::atomic<bool> lends{true};
  /// Whether the signature says of all arguments how they overlap. Only then `frames` may be used.
  bool has_frames = false;
  mutable ArgumentFrames frames;
};

/// Identifies the calls of an operator whose results look alike: the arguments have the same types, sizes and
/// strides, the first of them overlap in the same way, and the same values where those are no tensors and may
/// matter. Also contains those switches of torch on which kernels depend.
class CallSignature {
 public:
  /// `arguments` are those of the program. Without a signature (see valid()) nothing is known of the call.
  CallSignature(const c10::OperatorHandle& op, const OperatorFacts& facts, c10::DispatchKey kernel,
                c10::ArrayRef<c10::IValue> arguments);

  /// Returns false if results of equal calls may differ, or if an argument is neither a plain strided tensor
  /// nor a plain value.
  bool valid() const { return valid_; }
  bool operator==(const CallSignature& other) const { return words_ == other.words_; }
  std::size_t hash() const { return hash_; }
  /// Returns whether equal signatures mean that all arguments overlap in the same way.
  bool knows_overlaps() const { return knows_overlaps_; }

 private:
  void add(std::int64_t word) { words_.push_back(word); }
  void add(const at::Tensor& tensor, bool allow_cpu);
  void add_overlap(const c10::StorageImpl* storage);
  void add_slot(const c10::IValue& argument, const ArgumentSlot& slot);
  void add_value(const c10::IValue& argument, bool value_matters);

  c10::SmallVector<std::int64_t, 64> words_;
  c10::SmallVector<const c10::StorageImpl*, 8> storages_;  // of the first tensors
  std::size_t hash_ = 0;
  bool valid_ = true;
  bool knows_overlaps_ = true;
};

using KnownCallPtr = std::shared_ptr<const KnownCall>;

/// Returns what is known of calls with this signature, or null. Thread-safe.
KnownCallPtr find_known_call(const CallSignature& signature);

/// Forgets every call, so that the next one with each signature is a first one again. Thread-safe.
void forget_calls();

/// Looks at a call that has run, and remembers what it did. `shown` are the arguments that the kernel saw,
/// and `changes` what it has changed of them. `memory` has the log of what the kernel allocated. Returns what
/// is known from now on. Thread-safe.
KnownCallPtr learn_call(const CallSignature& signature, const OperatorFacts& facts,
                        c10::ArrayRef<c10::IValue> shown, c10::ArrayRef<c10::IValue> results,
                        const KernelMemory& memory, ArgumentChanges changes);

}  // namespace vdev
