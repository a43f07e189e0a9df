// The checks of a collective's tensors. Every check concerns this rank alone and raises before data moves.
// `operation` is the name of the collective, for the message.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace vccl {

using TensorVector = std::vector<at::Tensor>;

/// Checks that the tensor is dense, is on a card or on the CPU, and is not a lazy negation or conjugate.
/// Raises ValueError, or NotImplementedError for layouts that no collective supports.
void check_tensor(const at::Tensor& tensor, const char* operation);

/// Returns the one tensor of the list, checked as by check_tensor(). Raises ValueError unless the list has
/// exactly one tensor. The c10d interface takes lists because a process once used several devices.
const at::Tensor& single(const TensorVector& tensors, const char* operation);

/// Returns the one list of `lists`. Raises ValueError unless there is exactly one. `what` names its tensors
/// in the message.
const TensorVector& single_list(const std::vector<TensorVector>& lists, const char* what,
                                const char* operation);

/// Checks `tensor` as check_tensor() does, and that it has the device (ValueError) and dtype (TypeError) of
/// `like`.
void check_alike(const at::Tensor& tensor, const at::Tensor& like, const char* operation);

/// Checks that the list has one tensor for each rank, each with the device and dtype of `like`. `what` names
/// the tensors in the message ("output").
void check_list(const TensorVector& tensors, const at::Tensor& like, int size, const char* what,
                const char* operation);

/// Checks what check_list() checks, and that each tensor has as many elements as `like`. `like_what` names
/// `like`.
void check_equal_list(const TensorVector& tensors, const at::Tensor& like, int size, const char* what,
                      const char* like_what, const char* operation);

/// Checks that tensor `rank` of the list has as many elements as `own`. `own_what` names `own`.
void check_own_chunk(const TensorVector& tensors, const at::Tensor& own, int rank, const char* what,
                     const char* own_what, const char* operation);

/// Checks that `whole` has the device and dtype of `chunk` and `size` times its elements.
void check_chunks(const at::Tensor& whole, const at::Tensor& chunk, int size, const char* whole_what,
                  const char* chunk_what, const char* operation);

/// Checks that no list is given. Call this on a rank that is not the root.
void check_no_list(const std::vector<TensorVector>& lists, const char* what, std::int64_t root,
                   const char* operation);

/// Checks that there is at least one tensor, and that all are on one device.
void check_one_device(const TensorVector& tensors, const char* operation);

/// Checks the inputs with check_one_device(), and that there are as many outputs as inputs.
void check_pairs(const TensorVector& outputs, const TensorVector& inputs, const char* operation);

/// Checks that `root` is a rank of the group. `what` names it in the message ("source").
void check_root(std::int64_t root, int size, const char* what, const char* operation);

/// Checks that no two elements of the tensor are the same memory. Call this for a tensor that the collective
/// writes to.
void check_written(const at::Tensor& tensor, const char* what, const char* operation);

/// Checks each tensor as check_written() does, and that no two tensors overlap.
void check_all_written(const TensorVector& tensors, const char* what, const char* operation);

/// Checks that `tensor` overlaps no tensor of the list. But it may have the same memory as tensor number
/// `own`.
void check_apart(const at::Tensor& tensor, const TensorVector& list, int own, const char* what,
                 const char* list_what, const char* operation);

/// Checks that each tensor overlaps no tensor of the list, which has as many. But it may be the same memory
/// as the one with its number. Returns whether any of them is.
bool check_in_pairs(const TensorVector& tensors, const TensorVector& list, const char* what,
                    const char* list_what, const char* operation);

/// Checks that each tensor i overlaps no tensor of the list. The tensor with the number `first + i` is not
/// compared.
void check_all_apart(const TensorVector& tensors, const TensorVector& list, std::size_t first,
                     const char* what, const char* list_what, const char* operation);

/// Checks that `chunk` does not overlap `whole`, or is chunk `rank` of `size` equal chunks of it.
void check_in_place(const at::Tensor& chunk, const at::Tensor& whole, int rank, int size,
                    const char* chunk_what, const char* whole_what, const char* operation);

}  // namespace vccl
