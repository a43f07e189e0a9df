// What the launch of an operator must know of its schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace vdev {

/// Says what a CPU kernel must see in place of an argument.
enum class ArgumentKind : std::uint8_t { tensor, tensor_list, optional_tensor_list, device, generator };

/// Describes an argument that a CPU kernel must not see as it is.
struct ArgumentSlot {
  std::size_t index;
  ArgumentKind kind;
  bool written;    // the schema marks the argument as written: (a!)
  bool allow_cpu;  // as with CUDA, the argument may be a CPU tensor of any size
};

/// Holds what the schema says about an operator, computed once.
struct OperatorFacts {
  c10::OperatorName name{"", ""};
  std::size_t arguments = 0;
  std::vector<ArgumentSlot> slots;
  /// For each result, the number of the written argument that it is, or -1.
  std::vector<int> returned_argument;
  bool writes = false;  // an argument is written
  /// For each argument, whether its value may decide what the results look like. That of a number which takes
  /// part in the arithmetic does not, but its type does.
  std::vector<bool> value_matters;
  /// Null if equal calls (CallSignature) give results that look alike, so that calls can be tasks. Otherwise
  /// the reason why every call runs at once, as docs/operators.md writes it.
  const char* why_now = nullptr;
  bool regular() const { return why_now == nullptr; }
  bool waits_everywhere = false;  // the host has to wait for the elements of arguments on a GPU, too

  /// How many calls have become tasks, and how many have run at once. Relaxed.
  mutable std::atomic<std::uint64_t> later{0}, now{0};
};

/// Returns the facts of `op`, which live as long as the process. Thread-safe.
const OperatorFacts& facts_of(const c10::OperatorHandle& op);

/// Returns the facts of all operators that have been called on a card. Thread-safe.
std::vector<const OperatorFacts*> known_facts();

/// Returns the card of the first argument that has one, else the calling thread's current card.
int find_card(const OperatorFacts& facts, c10::ArrayRef<c10::IValue> arguments);

}  // namespace vdev
