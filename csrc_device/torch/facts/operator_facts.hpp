// What the schema of an operator tells about its calls.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc_device/torch/kernels/kernel_call.hpp"

namespace vdev {

/// Says what a CPU kernel must see in place of an argument.
enum class ArgumentKind : std::uint8_t { tensor, tensor_list, optional_tensor_list, device, generator };

struct CudaRefusal;

/// Describes an argument that a CPU kernel must not see as it is.
struct ArgumentSlot {
  std::size_t index;
  ArgumentKind kind;
  bool written;    // the schema marks the argument as written: (a!)
  bool allow_cpu;  // as with CUDA, the argument may be a CPU tensor of any size
  bool out;        // an out= argument, which the kernel may resize
  bool updated;    // what it held counts, as that of the tensor whose method add_() is
};

/// Holds what the schema says about an operator, computed once.
struct OperatorFacts {
  c10::OperatorName name{"", ""};
  std::size_t arguments = 0;
  std::vector<ArgumentSlot> slots;
  /// For each result, the number of the written argument that it is, or -1.
  std::vector<int> returned_argument;
  bool writes = false;      // an argument is written
  bool makes_view = false;  // a result is a view of an argument, so that no element is read
  /// For each argument, whether its value may decide what the results look like. That of a number which takes
  /// part in the arithmetic does not, but its type does.
  std::vector<bool> value_matters;
  /// Null if equal calls (CallSignature) give results that look alike, so that calls can be tasks. Otherwise
  /// the reason why every call runs at its call, as docs/operators.md writes it.
  const char* why_at_call = nullptr;
  /// The number of the argument that says how large a result is whose shape would otherwise depend on
  /// elements, or -1. Calls that give it can be tasks in spite of `why_at_call`.
  int size_argument = -1;
  /// What CUDA's kernels of dense and sparse tensors refuse, or null (cuda_refusals.hpp).
  const CudaRefusal* refusal = nullptr;
  const CudaRefusal* sparse_refusal = nullptr;
  InFloat32 in_float32;
  bool waits_everywhere = false;  // the host has to wait for the elements of arguments on a GPU, too
  /// Set when a task has given other results than an equal call before. Every later call then runs at its
  /// call. Relaxed, because a call that meets the old value finds the same out again.
  mutable std::atomic<bool> mispredicted{false};

  /// Raises what CUDA raises for a call of the program that its kernel refuses, if the cards pose as CUDA.
  void refuse_as_cuda(c10::DispatchKey key, c10::ArrayRef<c10::IValue> call) const {
    if (refusal != nullptr || sparse_refusal != nullptr) [[unlikely]]
      apply_refusals(key, call);
  }
  /// Returns whether the call says how large the result is.
  bool is_sized(c10::ArrayRef<c10::IValue> call) const {
    return size_argument >= 0 && !call[static_cast<std::size_t>(size_argument)].isNone();
  }
  /// Returns whether the call can be a task, as far as the operator decides that.
  bool is_regular(c10::ArrayRef<c10::IValue> call) const {
    return (why_at_call == nullptr || is_sized(call)) && !mispredicted.load(std::memory_order_relaxed);
  }

  /// How many calls have become tasks, and how many have run at their calls. Relaxed.
  mutable std::atomic<std::uint64_t> tasks{0}, at_calls{0};

 private:
  void apply_refusals(c10::DispatchKey key, c10::ArrayRef<c10::IValue> call) const;
};

/// Returns the facts of `op`, which live as long as the process. Thread-safe.
const OperatorFacts& facts_of(const c10::OperatorHandle& op);

/// Returns the facts of all operators that have been called on a card. Thread-safe.
std::vector<const OperatorFacts*> known_facts();

/// Returns the card of the first argument that has one, else the calling thread's current card.
int find_card(const OperatorFacts& facts, c10::ArrayRef<c10::IValue> arguments);

}  // namespace vdev
