#include "csrc_device/torch/kernels/cpu_view.hpp"

#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <cstring>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/allocator.hpp"
#include "csrc_device/torch/kernels/tensor_parts.hpp"
#include "csrc_device/torch/memory/cpu_allocator.hpp"
#include "csrc_device/torch/streams.hpp"

namespace vdev {
namespace {

constexpr std::size_t linear_search_limit = 16;

void release_storage(void* storage) {
  c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(storage));
}

// Returns a CPU tensor of dimension 0 with the same element.
at::Tensor copied(const at::Tensor& tensor) {
  at::Tensor copy = at::detail::empty_cpu({}, tensor.scalar_type());
  std::memcpy(copy.mutable_data_ptr(), tensor.const_data_ptr(), tensor.element_size());
  c10::TensorImpl* impl = copy.unsafeGetTensorImpl();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  impl->_set_conj(tensor.is_conj());
  impl->_set_neg(tensor.is_neg());
  return copy;
}

}  // namespace

at::Tensor tensor_like(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  c10::DispatchKeySet keys(key);
  if (like._is_zerotensor()) {
    keys = keys.add(c10::DispatchKey::ZeroTensor);
  }
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj()) {
    impl->_set_conj(true);
  }
  if (like.is_neg()) {
    impl->_set_neg(true);
  }
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) {
    impl->set_wrapped_number(true);
  }
  return tensor;
}

int card_of_tensor(const at::Tensor& tensor) {
  return tensor.defined() && is_card(tensor.device()) ? card_index(tensor.device()) : -1;
}

c10::Storage CpuView::show_storage(const c10::Storage& storage) {
  c10::StorageImpl* original = storage.unsafeGetStorageImpl();
  if (storages_.size() <= linear_search_limit) {
    for (const Shown& entry : storages_) {
      if (entry.original.unsafeGetStorageImpl() == original) {
        return entry.shown;
      }
    }
  } else {
    if (index_.empty()) {
      for (std::size_t i = 0; i < storages_.size(); ++i) {
        index_.emplace(storages_[i].original.unsafeGetStorageImpl(), i);
      }
    }
    auto [position, added] = index_.emplace(original, storages_.size());
    if (!added) {
      return storages_[position->second].shown;
    }
  }
  // mutable_data() also gives a copy-on-write storage its own memory before a kernel can write to it.
  void* data = original->mutable_data();
  const bool keeps = memory_ == Memory::kept || goes_with_last_owner(original->data_ptr());
  c10::DataPtr pointer(data, c10::Device(c10::DeviceType::CPU));
  if (keeps) {
    // The shown storage owns a reference to the original, without another object in between.
    c10::raw::intrusive_ptr::incref(original);
    pointer = {data, original, &release_storage, c10::Device(c10::DeviceType::CPU)};
  }
  c10::Storage shown(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), original->nbytes(), std::move(pointer), cpu_allocator(),
      memory_ == Memory::kept && original->resizable()));
  storages_.push_back({storage, shown});
  return shown;
}

const c10::Storage* CpuView::original_of(const c10::StorageImpl* shown) const {
  for (const Shown& entry : storages_) {
    if (entry.shown.unsafeGetStorageImpl() == shown) {
      return &entry.original;
    }
  }
  return nullptr;
}

// A kernel may give its output a shape, and then expect it of an input that is the same tensor (smm does).
at::Tensor CpuView::show_parts(const at::Tensor& tensor) {
  for (const auto& [original, shown] : assembled_) {
    if (original.is_same(tensor)) return shown;
  }
  TensorParts parts = parts_of(tensor);
  for (at::Tensor& part : parts) part = show(part);
  return assembled_.emplace_back(tensor, assemble(tensor, parts)).second;
}

at::Tensor CpuView::show(const at::Tensor& tensor, bool allow_cpu) {
  if (!tensor.defined()) {
    return tensor;
  }
  if (!is_card(tensor.device())) {
    TORCH_CHECK(tensor.is_cpu() && (allow_cpu || tensor.dim() == 0),
                "Expected all tensors to be on the same device, but found at least two devices, ",
                device_of(card_), " and ", tensor.device(), "!");
    return memory_ == Memory::kept ? tensor : copied(tensor);
  }
  TORCH_CHECK(card_index(tensor.device()) == card_,
              "Expected all tensors to be on the same device, but found at least two devices, ",
              device_of(card_), " and ", tensor.device(), "!");
  if (has_parts(tensor)) return show_parts(tensor);
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.has_storage() && tensor.layout() == c10::kStrided, device_name(),
                              ": a tensor of the layout ", tensor.layout(), " cannot be on a card");
  return tensor_like(show_storage(tensor.storage()), c10::DispatchKey::CPU, tensor);
}

void CpuView::take_memory(c10::StorageImpl* ours, c10::StorageImpl* theirs) {
  if (theirs->data() == ours->data()) {
    return;
  }
  // The kernel resized its output: the new memory came from the card and moves over. The shown storage
  // releases the original (its context), whose old memory the assignment frees.
  c10::DataPtr data = theirs->set_data_ptr(c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU)));
  TORCH_INTERNAL_ASSERT(!data || card_of(data.get()) == card_, device_name(),
                        ": an operator resized its output outside of the card's memory");
  data.unsafe_set_device(device_of(card_));
  adopt_memory(card_, data);
  // A further call for the same storage finds equal pointers, and has nothing to do.
  theirs->set_data_ptr_noswap(c10::DataPtr(data.get(), c10::Device(c10::DeviceType::CPU)));
  ours->set_data_ptr_noswap(std::move(data));
  ours->set_nbytes(theirs->nbytes());
}

void CpuView::write_back_parts(const at::Tensor& original, const at::Tensor& shown) {
  const auto written = [this](const at::Tensor& kept, const at::Tensor& seen) {
    c10::StorageImpl* storage = seen.storage().unsafeGetStorageImpl();
    const c10::Storage* known = original_of(storage);
    if (known == nullptr) {
      return adopt(seen);  // the kernel put in a tensor of its own
    }
    take_memory(known->unsafeGetStorageImpl(), storage);
    // If nothing changed, the same tensor stays, so that views of it, which the caller may hold, keep their
    // base.
    const bool same = known->unsafeGetStorageImpl() == kept.storage().unsafeGetStorageImpl() &&
                      seen.sizes() == kept.sizes() && seen.strides() == kept.strides() &&
                      seen.storage_offset() == kept.storage_offset() && seen.dtype() == kept.dtype() &&
                      seen.is_conj() == kept.is_conj() && seen.is_neg() == kept.is_neg();
    return same ? kept : adopt(seen);
  };
  TensorParts parts = parts_of(original);
  const TensorParts theirs = parts_of(shown);
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = written(parts[i], theirs[i]);
  replace_parts(original, shown, parts);
}

void CpuView::write_back(const at::Tensor& original, const at::Tensor& shown) {
  if (!original.defined() || original.is_same(shown)) {
    return;
  }
  if (has_parts(original)) {
    write_back_parts(original, shown);
    return;
  }
  take_memory(original.storage().unsafeGetStorageImpl(), shown.storage().unsafeGetStorageImpl());
  // Kernels may leave the last step of a conjugation to the bit (linalg_lu_solve from the right does).
  if (shown.is_conj() != original.is_conj()) {
    original._set_conj(shown.is_conj());
  }
  if (shown.is_neg() != original.is_neg()) {
    original._set_neg(shown.is_neg());
  }
  if (shown.sizes() != original.sizes() || shown.strides() != original.strides() ||
      shown.storage_offset() != original.storage_offset()) {
    original.unsafeGetTensorImpl()->set_sizes_and_strides(shown.sizes(), shown.strides(),
                                                          shown.storage_offset());
  }
}

bool CpuView::keeps_memory(const at::Tensor& shown) {
  return shown.storage().data_ptr().get_deleter() == &release_storage;
}

bool CpuView::unchanged(const at::Tensor& original, const at::Tensor& shown) {
  if (!original.defined() || original.is_same(shown)) return true;
  return original.has_storage() && shown.has_storage() &&
         original.storage().data() == shown.storage().data() && original.is_conj() == shown.is_conj() &&
         original.is_neg() == shown.is_neg() && original.sizes().equals(shown.sizes()) &&
         original.strides().equals(shown.strides()) && original.storage_offset() == shown.storage_offset();
}

at::Tensor CpuView::adopt(const at::Tensor& result) {
  if (!result.defined() || is_card(result.device())) {
    return result;
  }
  if (has_parts(result)) {
    TensorParts parts = parts_of(result);
    for (at::Tensor& part : parts) part = adopt(part);
    c10::DeviceGuard current(device_of(card_));
    return assemble(result, parts);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(result.has_storage() && result.layout() == c10::kStrided, device_name(),
                              ": the operator's result has the layout ", result.layout(),
                              ", which cannot be on a card");
  c10::StorageImpl* storage = result.storage().unsafeGetStorageImpl();
  if (const c10::Storage* original = original_of(storage)) {
    return tensor_like(*original, dense_key(), result);
  }
  // For a second result over the same storage, the storage is adopted already.
  if (!is_card(storage->device())) {
    const void* data = storage->data();
    if (data != nullptr && card_of(data) != card_) {
      // A kernel may return memory that another thread allocated, or a tensor that the kernel had cached.
      // Such memory must be copied.
      c10::DataPtr copy = allocate_on(card_, storage->nbytes());
      std::memcpy(copy.get(), data, storage->nbytes());
      c10::Storage moved(c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(), storage->nbytes(), std::move(copy), device_allocator(), true));
      return tensor_like(std::move(moved), dense_key(), result);
    }
    storage->_mutable_data_ptr_no_checks().unsafe_set_device(device_of(card_));
    storage->set_allocator(device_allocator());
    adopt_memory(card_, storage->data_ptr());
  }
  return tensor_like(result.storage(), dense_key(), result);
}

}  // namespace vdev
