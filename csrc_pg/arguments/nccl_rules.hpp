// What ProcessGroupNCCL and NCCL refuse and this backend could do.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "transport/rank_names.hpp"

namespace vccl {

/// Refuses what the calls of a group refuse on GPUs, so that a program which runs on the cards runs there,
/// too (VCCL_STRICT). Every check concerns tensors of cards, raises before anything has moved, and does
/// nothing if the rules are off. Errors have the type and the text of ProcessGroupNCCL's (torch 2.13) or
/// NCCL's (2.27), and say what the cards could do. `operation` is the name of the call.
class NcclRules {
 public:
  NcclRules(bool on, RankNames names, int rank) : on_(on), names_(std::move(names)), rank_(rank) {}

  bool on() const { return on_; }

  /// The tensor is contiguous, as its suggested memory format has it, and of a dtype that NCCL moves in a
  /// collective.
  void check_moved(const at::Tensor& tensor, const char* operation) const;
  /// The same for a tensor that torch exchanges by messages: all_to_all, gather and scatter.
  void check_exchanged(const at::Tensor& tensor, const char* operation) const;
  void check_exchanged(const std::vector<at::Tensor>& tensors, const char* operation) const;
  /// The tensor of a send or receive is dense, in any order of dimensions, and of a dtype that NCCL moves.
  void check_message(const at::Tensor& tensor, const char* operation) const;
  /// NCCL has the reduction for the tensor's dtype.
  void check_reduction(const at::Tensor& tensor, const c10d::ReduceOp& op, const char* operation) const;
  /// The tensor is contiguous in row-major order. Where another layout would only be copied, or read as it
  /// lies in memory, ProcessGroupNCCL does not check.
  void check_row_major(const at::Tensor& tensor, const char* operation) const;
  void check_row_major(const std::vector<at::Tensor>& tensors, const char* operation) const;
  /// The tensors are dense, in any order of dimensions.
  void check_dense(const std::vector<at::Tensor>& tensors, const char* operation) const;
  /// Each tensor has the sizes of `like`.
  void check_same_sizes(const std::vector<at::Tensor>& tensors, const at::Tensor& like,
                        const char* operation) const;
  /// Raises what the methods raise that ProcessGroupNCCL has not.
  void refuse_unsupported(const char* method, const char* operation) const;
  void refuse_sparse(const char* operation) const;

  /// Returns the tensor as it lies in memory, flat, if the rules are on. NCCL moves memory, so two ranks
  /// whose dense tensors have different orders of dimensions get each other's memory and not their elements.
  at::Tensor memory_of(const at::Tensor& tensor) const;
  std::vector<at::Tensor> memory_of(const std::vector<at::Tensor>& tensors) const;

  /// Returns the text of an error: NCCL's words, who called what, and what can be done. `found` may be empty,
  /// and `advice` is what works on GPUs.
  std::string text(std::string_view nccls, const char* operation, const std::string& found,
                   std::string_view advice) const;

 private:
  bool applies_to(const at::Tensor& tensor) const { return on_ && !tensor.device().is_cpu(); }
  void check_contiguous(const at::Tensor& tensor, const char* operation) const;
  void check_collective_dtype(const at::Tensor& tensor, const char* operation) const;
  void check_premul_factor(const c10d::ReduceOp& op, const at::Tensor& tensor, const char* operation) const;

  const bool on_;
  const RankNames names_;
  const int rank_;
};

}  // namespace vccl
