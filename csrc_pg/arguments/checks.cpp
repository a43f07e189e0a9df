#include "csrc_pg/arguments/checks.hpp"

#include <c10/util/Exception.h>

#include "csrc_device/torch/device_type.hpp"
#include "csrc_pg/arguments/overlap.hpp"

namespace vccl {

void check_tensor(const at::Tensor& tensor, const char* operation) {
  TORCH_CHECK_VALUE(tensor.defined(), operation, ": the tensor is undefined");
  const auto device = tensor.device();
  TORCH_CHECK_VALUE(device.is_cpu() || vdev::is_card(device), operation, ": backend vccl serves tensors on ",
                    vdev::device_name(), " and on the CPU, and this one is on ", device);
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided, "Backend vccl does not support ", operation,
                              " of ", tensor.layout(), " tensors");
  TORCH_CHECK_VALUE(!tensor.is_conj() && !tensor.is_neg(), operation,
                    ": the tensor is a lazy conjugate or negation; call resolve_conj().resolve_neg() first");
}

const at::Tensor& single(const TensorVector& tensors, const char* operation) {
  TORCH_CHECK_VALUE(tensors.size() == 1, operation, ": backend vccl takes one tensor a call, and was given ",
                    tensors.size());
  check_tensor(tensors.front(), operation);
  return tensors.front();
}

const TensorVector& single_list(const std::vector<TensorVector>& lists, const char* what,
                                const char* operation) {
  TORCH_CHECK_VALUE(lists.size() == 1, operation, ": backend vccl takes one list of ", what,
                    "s, and was given ", lists.size());
  return lists.front();
}

void check_alike(const at::Tensor& tensor, const at::Tensor& like, const char* operation) {
  check_tensor(tensor, operation);
  TORCH_CHECK_VALUE(tensor.device() == like.device(), operation, ": tensors on ", like.device(), " and on ",
                    tensor.device(), " in one call");
  // This raises TypeError, as ProcessGroupNCCL and ProcessGroupGloo do.
  TORCH_CHECK_TYPE(tensor.scalar_type() == like.scalar_type(), operation, ": tensors of ", like.scalar_type(),
                   " and of ", tensor.scalar_type(), " in one call");
}

void check_list(const TensorVector& tensors, const at::Tensor& like, int size, const char* what,
                const char* operation) {
  TORCH_CHECK_VALUE(tensors.size() == static_cast<std::size_t>(size), operation, ": ", tensors.size(), " ",
                    what, " tensors for a group of ", size, " ranks");
  for (const auto& tensor : tensors) check_alike(tensor, like, operation);
}

void check_equal_list(const TensorVector& tensors, const at::Tensor& like, int size, const char* what,
                      const char* like_what, const char* operation) {
  check_list(tensors, like, size, what, operation);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    TORCH_CHECK_VALUE(tensors[i].numel() == like.numel(), operation, ": ", what, " ", i, " has ",
                      tensors[i].numel(), " elements, and must have as many as the ", like_what, ", ",
                      like.numel());
}

void check_own_chunk(const TensorVector& tensors, const at::Tensor& own, int rank, const char* what,
                     const char* own_what, const char* operation) {
  const auto& chunk = tensors[static_cast<std::size_t>(rank)];
  TORCH_CHECK_VALUE(chunk.numel() == own.numel(), operation, ": ", what, " ", rank,
                    ", which is this rank's own, has ", chunk.numel(), " elements, and the ", own_what,
                    " has ", own.numel());
}

void check_chunks(const at::Tensor& whole, const at::Tensor& chunk, int size, const char* whole_what,
                  const char* chunk_what, const char* operation) {
  check_alike(whole, chunk, operation);
  TORCH_CHECK_VALUE(whole.numel() == chunk.numel() * size, operation, ": the ", whole_what, " has ",
                    whole.numel(), " elements, and must have ", size, " (ranks) times the ", chunk_what,
                    "'s ", chunk.numel());
}

void check_no_list(const std::vector<TensorVector>& lists, const char* what, std::int64_t root,
                   const char* operation) {
  TORCH_CHECK_VALUE(lists.empty() || (lists.size() == 1 && lists.front().empty()), operation,
                    ": this rank gave a list of ", what, "s, and only rank ", root,
                    " may give one; pass no list on the other ranks");
}

void check_one_device(const TensorVector& tensors, const char* operation) {
  TORCH_CHECK_VALUE(!tensors.empty(), operation, ": no tensors");
  for (const auto& tensor : tensors) {
    check_tensor(tensor, operation);
    TORCH_CHECK_VALUE(tensor.device() == tensors.front().device(), operation, ": tensors on ",
                      tensors.front().device(), " and on ", tensor.device(), " in one call");
  }
}

void check_pairs(const TensorVector& outputs, const TensorVector& inputs, const char* operation) {
  check_one_device(inputs, operation);
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), operation, ": ", outputs.size(), " outputs for ",
                    inputs.size(), " inputs");
}

void check_root(std::int64_t root, int size, const char* what, const char* operation) {
  TORCH_CHECK_VALUE(root >= 0 && root < size, operation, ": the ", what, " is rank ", root, " of a group of ",
                    size, " ranks");
}

void check_written(const at::Tensor& tensor, const char* what, const char* operation) {
  TORCH_CHECK_VALUE(!overlaps_itself(tensor), operation, ": the ", what,
                    " overlaps itself: several of its elements are the same memory, as expand() makes them; "
                    "give it memory of its own with clone()");
}

void check_all_written(const TensorVector& tensors, const char* what, const char* operation) {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    TORCH_CHECK_VALUE(!overlaps_itself(tensors[i]), operation, ": ", what, " ", i,
                      " overlaps itself: several of its elements are the same memory, as expand() makes "
                      "them; give it memory of its own with clone()");
  if (tensors.size() < 2) return;
  const Memory memory(tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const int other = memory.find(tensors[i], static_cast<int>(i));
    TORCH_CHECK_VALUE(other < 0, operation, ": ", what, "s ", i, " and ", other, " overlap");
  }
}

void check_apart(const at::Tensor& tensor, const TensorVector& list, int own, const char* what,
                 const char* list_what, const char* operation) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!overlap(tensor, list[i])) continue;
    if (static_cast<int>(i) == own && same_memory(tensor, list[i])) continue;
    TORCH_CHECK_VALUE(false, operation, ": the ", what, " overlaps ", list_what, " ", i,
                      "; it may only be all of ", list_what, " ", own, ", this rank's own chunk");
  }
}

bool check_in_pairs(const TensorVector& tensors, const TensorVector& list, const char* what,
                    const char* list_what, const char* operation) {
  const Memory memory(list);
  bool any = false;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    int other = memory.find(tensors[i], static_cast<int>(i));
    if (other < 0 && overlap(tensors[i], list[i])) {
      if (!same_memory(tensors[i], list[i])) other = static_cast<int>(i);
      any = true;
    }
    TORCH_CHECK_VALUE(other < 0, operation, ": ", what, " ", i, " overlaps ", list_what, " ", other,
                      "; it may only be all of ", list_what, " ", i);
  }
  return any;
}

void check_all_apart(const TensorVector& tensors, const TensorVector& list, std::size_t first,
                     const char* what, const char* list_what, const char* operation) {
  const Memory memory(list);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const int other = memory.find(tensors[i], static_cast<int>(first + i));
    TORCH_CHECK_VALUE(other < 0, operation, ": ", what, " ", i, " overlaps ", list_what, " ", other);
  }
}

void check_in_place(const at::Tensor& chunk, const at::Tensor& whole, int rank, int size,
                    const char* chunk_what, const char* whole_what, const char* operation) {
  if (!overlap(chunk, whole) || is_chunk(chunk, whole, rank, size)) return;
  TORCH_CHECK_VALUE(false, operation, ": the ", chunk_what, " overlaps the ", whole_what,
                    "; it may only be chunk ", rank, " of it, this rank's own");
}

}  // namespace vccl
