// Operators that make tensors of card memory, or change which part of it a tensor shows. They touch no
// element, so they run at once on the calling thread, whatever is queued.
#define AT_PER_OPERATOR_HEADERS

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/allocator.hpp"
#include "csrc_device/torch/errors.hpp"
#include "csrc_device/torch/registration.hpp"
#include "csrc_device/torch/streams.hpp"
#include "csrc_device/torch/threads/current_card.hpp"

namespace vdev {
namespace {

void check_options(std::optional<at::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, device_name(),
              " tensors are strided, got layout ", *layout);
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

int target_card(std::optional<at::Device> device) {
  return device.has_value() ? card_index(*device) : current_card();
}

bool fill_uninitialized() {
  return at::globalContext().deterministicAlgorithms() &&
         at::globalContext().deterministicFillUninitializedMemory();
}

at::Tensor fresh(at::Tensor tensor) {
  if (fill_uninitialized()) [[unlikely]] {
    at::native::fill_empty_deterministic_(tensor);
  }
  return tensor;
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> format) {
  check_options(layout, pin_memory);
  CurrentCard current(target_card(device));
  return fresh(at::detail::empty_generic(size, device_allocator(), c10::DispatchKeySet(dense_key()),
                                         at::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> device,
                         std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  CurrentCard current(target_card(device));
  return fresh(at::detail::empty_strided_generic(
      size, stride, device_allocator(), c10::DispatchKeySet(dense_key()), at::dtype_or_default(dtype)));
}

// Gives the tensor that shape (contiguous without strides), and makes its storage large enough. A storage
// never shrinks.
void resize_tensor(c10::TensorImpl* tensor, at::IntArrayRef size, at::OptionalIntArrayRef stride) {
  if (tensor->sizes() == size && (!stride || tensor->strides() == *stride)) {
    return;
  }
  const auto item = tensor->dtype().itemsize();
  const auto offset = static_cast<std::size_t>(tensor->storage_offset());
  std::size_t bytes = 0;
  if (stride) {
    tensor->set_sizes_and_strides(size, *stride);
    bytes = at::detail::computeStorageNbytes(size, *stride, item, offset);
  } else {
    tensor->set_sizes_contiguous(size);
    bytes = at::detail::computeStorageNbytesContiguous(size, item, offset);
  }
  if (tensor->numel() != 0 && bytes > tensor->unsafe_storage().nbytes()) {
    resize_storage(tensor->unsafe_storage(), bytes);
  }
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size,
                          std::optional<at::MemoryFormat> format) {
  auto* tensor = self.unsafeGetTensorImpl();
  const auto old_bytes = static_cast<std::int64_t>(tensor->unsafe_storage().nbytes());
  resize_tensor(tensor, size, std::nullopt);
  if (format) {
    TORCH_CHECK(*format != at::MemoryFormat::Preserve, "Unsupported memory format ", *format);
    tensor->empty_tensor_restride(*format);
  }
  if (fill_uninitialized()) [[unlikely]] {
    at::native::fill_resize_deterministic_(self, old_bytes);
  }
  return self;
}

at::Tensor& set_storage_offset_(at::Tensor& self, at::Storage source, std::int64_t offset,
                                at::IntArrayRef size, at::IntArrayRef stride) {
  at::native::checkSetStorage(self, source, offset, size, stride);
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  resize_tensor(self.unsafeGetTensorImpl(), size,
                stride.data() != nullptr ? at::OptionalIntArrayRef(stride) : std::nullopt);
  return self;
}

at::Tensor& set_storage_(at::Tensor& self, at::Storage source) {
  const auto count = static_cast<std::int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage_offset_(self, std::move(source), 0, count, {});
}

at::Tensor& set_nothing_(at::Tensor& self) {
  CurrentCard current(card_index(self.device()));
  at::Storage nothing(at::Storage::use_byte_size_t(), 0, device_allocator(), /*resizable=*/true);
  return set_storage_offset_(self, std::move(nothing), 0, {0}, {});
}

void record_stream(at::Tensor& self, at::Stream stream) {
  device_allocator()->recordStream(self.storage().data_ptr(), stream);
}

// `parameter.data = tensor` and module.to() keep the tensor object and replace what it shows. torch itself
// refuses this if the devices differ in dispatch key. Dense tensors of card and host are of the same class,
// so here it works.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto dense = [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && !tensor.is_quantized() &&
           (tensor.is_cpu() || is_card(tensor.device()));
  };
  return dense(self) && dense(from);
}

VDEV_LIBRARY_IMPL(aten, dense_key(), library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("resize_", TORCH_FN(resize_));
  library.impl("set_", TORCH_FN(set_nothing_));
  library.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  library.impl("set_.source_Storage", TORCH_FN(set_storage_));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_offset_));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  library.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  library.impl("record_stream", TORCH_FN(record_stream));
  library.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
}

}  // namespace
}  // namespace vdev
