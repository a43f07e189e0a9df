// What a collective demands of its tensors. Everything here raises before anything moves and concerns this
// rank alone.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace vccl {

using TensorVector = std::vector<at::Tensor>;

/// A dense tensor on a card or on the CPU, not a lazy negation or conjugate. Raises ValueError, or
/// NotImplementedError for layouts that have no collective.
void check_tensor(const at::Tensor& tensor, const char* operation);

/// The one tensor of the list, checked. The c10d interface is older than one device a process.
const at::Tensor& single(const TensorVector& tensors, const char* operation);

/// The one list of the lists; `what` they are, for the message.
const TensorVector& single_list(const std::vector<TensorVector>& lists, const char* what,
                                const char* operation);

/// Same device (ValueError) and dtype (TypeError) as `like`.
void check_alike(const at::Tensor& tensor, const at::Tensor& like, const char* operation);

/// One tensor a rank, each like `like`; `what` they are ("output").
void check_list(const TensorVector& tensors, const at::Tensor& like, int size, const char* what,
                const char* operation);

/// The same, and each as large as `like`, which is `like_what`.
void check_equal_list(const TensorVector& tensors, const at::Tensor& like, int size, const char* what,
                      const char* like_what, const char* operation);

/// Tensor `rank` of the list has as many elements as `own`, which is `own_what`.
void check_own_part(const TensorVector& tensors, const at::Tensor& own, int rank, const char* what,
                    const char* own_what, const char* operation);

/// `whole` is like `part` and holds `size` times its elements.
void check_parts(const at::Tensor& whole, const at::Tensor& part, int size, const char* whole_what,
                 const char* part_what, const char* operation);

/// No list at all, on a rank that is not the root.
void check_no_list(const std::vector<TensorVector>& lists, const char* what, std::int64_t root,
                   const char* operation);

/// At least one tensor, all on one device.
void check_one_device(const TensorVector& tensors, const char* operation);

/// The same of the inputs, and as many outputs.
void check_pairs(const TensorVector& outputs, const TensorVector& inputs, const char* operation);

/// A rank of the group; `what` it is ("source").
void check_root(std::int64_t root, int size, const char* what, const char* operation);

/// The tensor is written, so no two of its elements may be the same memory.
void check_written(const at::Tensor& tensor, const char* what, const char* operation);

/// The same for each of the tensors and between them.
void check_all_written(const TensorVector& tensors, const char* what, const char* operation);

/// `tensor` is apart from all of the list, save that it may be all the memory of tensor `own`; -1: of none.
void check_apart(const at::Tensor& tensor, const TensorVector& list, int own, const char* what,
                 const char* list_what, const char* operation);

/// Each tensor i is apart from all of the list but number `first + i`, which is not looked at.
void check_all_apart(const TensorVector& tensors, const TensorVector& list, std::size_t first,
                     const char* what, const char* list_what, const char* operation);

/// `part` is apart from `whole`, or part `rank` of it.
void check_in_place(const at::Tensor& part, const at::Tensor& whole, int rank, int size,
                    const char* part_what, const char* whole_what, const char* operation);

}  // namespace vccl
