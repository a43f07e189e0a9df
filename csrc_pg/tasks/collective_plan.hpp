// What one collective does once its stream has come to it.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include "csrc_device/runtime/failure.hpp"
#include "csrc_device/runtime/strided_memory.hpp"
#include "csrc_device/torch/races.hpp"
#include "csrc_pg/collectives/call.hpp"
#include "csrc_pg/operations/content_hashes.hpp"
#include "csrc_pg/operations/held_memory.hpp"
#include "faults/strikes.hpp"

namespace vccl {

/// Describes the memory of a tensor at the time of the call, because the host may resize or rebind the tensor
/// before the stream has come to the collective.
struct View {
  void* data = nullptr;
  c10::ScalarType type = c10::ScalarType::Byte;
  at::DimVector sizes, strides;
  bool contiguous = true;
  std::size_t bytes = 0;

  static View of(const at::Tensor& tensor);
  vdev::StridedMemory memory() const;
};

/// Copies the elements of `from` to `to`, each in row-major order, on the calling thread. Both must have the
/// same number of elements.
void copy_elements(const View& to, const View& from);

/// Holds the copies and calls of one collective, in order, and the memory that they need.
///
/// A plan on a card gives up that part of the memory which the order of streams protects, before it is
/// launched: see leave_memory_to_stream() and hold_memory_in(). What remains is kept until the plan has run.
///
/// A collective moves contiguous memory. The elements of other tensors are copied to scratch memory before,
/// and back afterwards. The task makes these copies, so that they come after the stream's earlier work and
/// not on the caller's thread. A plan is moved and never copied, because the calls point into it.
class CollectivePlan {
 public:
  using Body = std::function<void(Communicator&, const Deadline&)>;

  CollectivePlan() = default;
  CollectivePlan(CollectivePlan&&) = default;
  CollectivePlan& operator=(CollectivePlan&&) = default;

  /// Returns where the calls find the elements of `tensor`.
  const void* read(const at::Tensor& tensor);
  /// Returns where the calls leave the elements of `tensor`.
  void* write(const at::Tensor& tensor);
  /// Returns where the calls find the elements of `tensor` and leave them again.
  void* update(const at::Tensor& tensor);
  /// read_all() and write_all() do the same for several tensors of one dtype and device, whose elements lie
  /// one after the other.
  const void* read_all(const std::vector<at::Tensor>& tensors);
  void* write_all(const std::vector<at::Tensor>& tensors);
  /// Keeps a call's counts in memory that stays in place for as long as the plan lives, even if the plan is
  /// moved.
  std::span<const std::size_t> counts(std::vector<std::size_t> counts);

  /// Call this for a plan that runs on the caller's current stream of a card, or in a graph. As with
  /// operators, what the program frees may then be reused by later tasks of that stream, and memory of other
  /// streams needs record_stream(). `held` gets the memory of the card's allocator, if it is given.
  void leave_memory_to_stream(HeldMemory* held = nullptr);
  /// Call this for a plan that runs on another stream of a card. `held`, which the plan shares from now on,
  /// gets the memory of the card's allocator.
  void hold_memory_in(std::shared_ptr<HeldMemory> held);

  /// Returns what the plan reads and writes, for the race detector. Empty while nobody looks for races.
  const vdev::races::Tensors& touched() const { return touched_; }

  void add(const Call& call) { calls_.push_back(call); }
  /// Adds a call whose factor is the one element of `factor`, read when the stream has come to the call.
  void add(const Call& call, const at::Tensor& factor);
  /// Takes out the calls that NCCL passes over, because they have no elements: nobody waits for anybody in
  /// them. Those that are made of messages stay.
  void drop_empty_calls();
  /// Adds a function that runs after the calls. A collective uses it if it learns from one call how long the
  /// next one is.
  void add(Body body) { bodies_.push_back(std::move(body)); }
  const std::vector<Call>& calls() const { return calls_; }
  /// Lets the faults of a plan (faults/faults.hpp) strike when this one runs.
  void set_faults(std::shared_ptr<faults::Strikes> faults) { faults_ = std::move(faults); }
  const std::shared_ptr<faults::Strikes>& faults() const { return faults_; }
  /// Says whether NaN and infinity in what the calls read is an error.
  void check_nan(bool wanted) { checks_nan_ = wanted; }
  bool checks_nan() const { return checks_nan_; }
  /// Sets Call::order of the calls.
  void set_order(std::uint32_t order) { order_ = order; }

  /// Makes run() note hashes of the elements in the flight recorder. A message's plan only keeps the entry.
  void hash_for(const HashedEntry& entry) { hashed_ = entry; }
  const HashedEntry& hashed() const { return hashed_; }

  /// Runs the copies, the calls and the functions. Throws Error.
  void run(Communicator& communicator, Milliseconds timeout) const;
  /// copy_in() makes only the copies before the calls, and copy_out() only those after the calls. Messages
  /// use them, because the transport moves the data in between.
  void copy_in() const;
  void copy_out() const;

  // The next three functions connect the plan with vdev::SpoiledMemory. Call them in the order of the plan's
  // stream, while the plan holds its memory.

  /// Returns a failure that has spoiled what the plan reads, or null.
  vdev::FailurePtr spoiled_input() const;
  /// Call this when the plan has failed. Reading its outputs raises `failure` afterwards.
  void spoil_outputs(const vdev::FailurePtr& failure) const;
  /// Call this when the plan has run. Its outputs may be read afterwards.
  void renew_outputs() const;

 private:
  struct Copy {
    View to, from;
  };
  struct Factor {
    std::size_t call;
    View of;
  };
  struct Bytes {
    const void* begin;
    std::size_t size;
  };

  at::Tensor scratch(const at::Tensor& like, std::int64_t elements);
  enum class Use : std::uint8_t { read, write };
  void keep(const at::Tensor& tensor, Use use);
  void run_calls(Communicator& communicator, const Deadline& deadline) const;
  void run_all(Communicator& communicator, Milliseconds timeout) const;

  void add_bytes(c10::SmallVector<Bytes, 2>& to, const at::Tensor& tensor) {
    to.push_back({tensor.data_ptr(), tensor.nbytes()});
  }

  // The memory of the contiguous tensors that are read and written. The copies hold that of the other
  // tensors.
  c10::SmallVector<Bytes, 2> inputs_, outputs_;
  std::vector<Copy> before_, after_;
  std::vector<Call> calls_;
  std::vector<Factor> factors_;  // in the order of their calls
  std::vector<Body> bodies_;
  std::vector<std::vector<std::size_t>> counts_;
  std::uint32_t order_ = 0;
  HashedEntry hashed_;
  // The plan keeps storages and not tensors: a worker destroys them when the task is done, and destroying a
  // tensor that Python knows takes the GIL.
  std::vector<c10::Storage> storages_;
  // Memory that only the plan knows stays its own, even after a stream has waited for the operation: that
  // stream need not be the one for which the memory was allocated, and which gets it next.
  std::vector<c10::Storage> scratch_;
  vdev::races::Tensors touched_;
  std::shared_ptr<HeldMemory> held_;
  std::shared_ptr<faults::Strikes> faults_;  // null as a rule
  bool checks_nan_ = false;
};

/// Calls `run`, and lets the faults of its operation strike: before, in its midst and after it.
void run_with_faults(faults::Strikes& strikes, c10::function_ref<void()> run);

/// Checks that no failed operation has spoiled what `plan` reads. Otherwise fails the communicator, because
/// the peers must not wait for this rank, and throws Error. `name` is the name of the plan's operation.
void check_inputs(const CollectivePlan& plan, Communicator& communicator, const std::string& name);

}  // namespace vccl
