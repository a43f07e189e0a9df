// What one collective does once its turn on the stream comes.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "csrc_pg/collectives/types.hpp"

namespace vccl {

/// The memory of a tensor, as it was when the collective was called: the host may resize or rebind the tensor
/// before the stream comes to it.
struct View {
  void* data = nullptr;
  c10::ScalarType type = c10::ScalarType::Byte;
  at::DimVector sizes, strides;
  bool contiguous = true;
  std::size_t bytes = 0;

  static View of(const at::Tensor& tensor);
};

/// Copies element by element, in row-major order of each; both have as many elements. Runs on the calling
/// thread.
void copy_elements(const View& to, const View& from);

/// The copies and calls of one collective, in order, and the memory they need.
///
/// A collective moves contiguous memory. Tensors that are not are copied to scratch memory before and back
/// after, by the task itself, so that nothing of it happens before the stream's earlier work or on the
/// caller's thread. Moved, never copied: the calls point into it.
class Plan {
 public:
  using Body = std::function<void(Communicator&, const Deadline&)>;

  Plan() = default;
  Plan(Plan&&) = default;
  Plan& operator=(Plan&&) = default;

  /// Where the calls find the elements of `tensor`.
  const void* read(const at::Tensor& tensor);
  /// Where the calls leave the elements of `tensor`.
  void* write(const at::Tensor& tensor);
  /// Both.
  void* update(const at::Tensor& tensor);
  /// The same for tensors of one dtype and device, one after the other.
  const void* read_all(const std::vector<at::Tensor>& tensors);
  void* write_all(const std::vector<at::Tensor>& tensors);
  /// Memory for a call's counts; it stays where it is for as long as the plan lives, moved or not.
  std::span<const std::size_t> counts(std::vector<std::size_t> counts);

  void add(const Call& call) { calls_.push_back(call); }
  /// `factor`, of one element, becomes the call's when the stream has come to it.
  void add(const Call& call, const at::Tensor& factor);
  /// Something to do after the calls, for a collective that learns from one call how long the next one is.
  void add(Body body) { bodies_.push_back(std::move(body)); }
  const std::vector<Call>& calls() const { return calls_; }

  /// Does it all. Throws Error.
  void run(Communicator& communicator, Milliseconds timeout) const;
  /// Its first and its last step alone, for what happens in between without the plan.
  void copy_in() const;
  void copy_out() const;

 private:
  struct Copy {
    View to, from;
  };
  struct Factor {
    std::size_t call;
    View of;
  };

  at::Tensor scratch(const at::Tensor& like, std::int64_t elements);
  void keep(const at::Tensor& tensor) { storages_.push_back(tensor.storage()); }
  void run_calls(Communicator& communicator, const Deadline& deadline) const;

  std::vector<Copy> before_, after_;
  std::vector<Call> calls_;
  std::vector<Factor> factors_;  // in the order of their calls
  std::vector<Body> bodies_;
  std::vector<std::vector<std::size_t>> counts_;
  // Storages and not tensors: a worker drops them when the task is done, and letting go of a tensor that
  // Python knows takes the GIL.
  std::vector<c10::Storage> storages_;
};

}  // namespace vccl
