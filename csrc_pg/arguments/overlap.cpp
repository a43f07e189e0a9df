#include "csrc_pg/arguments/overlap.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace vccl {
namespace {

constexpr std::int64_t kMostCompared = 1 << 20;

// Describes the addresses from a tensor's first element to its last. The first element has the lowest
// address, because strides are never negative.
struct Range {
  std::uintptr_t begin = 0, end = 0;
};

Range range_of(const at::Tensor& tensor) {
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.data_ptr());
  return {begin, begin + static_cast<std::uintptr_t>(last + 1) * tensor.element_size()};
}

bool fills_its_range(const at::Tensor& tensor) {
  return tensor.is_contiguous() || tensor.is_non_overlapping_and_dense();
}

// Returns the addresses of all elements, sorted.
std::vector<std::uintptr_t> addresses_of(const at::Tensor& tensor) {
  std::vector<std::uintptr_t> addresses{reinterpret_cast<std::uintptr_t>(tensor.data_ptr())};
  addresses.reserve(static_cast<std::size_t>(tensor.numel()));
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    const std::size_t before = addresses.size();
    const auto step = static_cast<std::uintptr_t>(tensor.stride(d)) * tensor.element_size();
    for (std::int64_t i = 1; i < tensor.size(d); ++i)
      for (std::size_t j = 0; j < before; ++j)
        addresses.push_back(addresses[j] + static_cast<std::uintptr_t>(i) * step);
  }
  std::sort(addresses.begin(), addresses.end());
  return addresses;
}

// Returns whether each dimension, from the smallest stride up, steps over all that the smaller ones reach.
// Then no two indices have the same address.
bool nested(const at::Tensor& tensor) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dimensions;  // stride, size
  for (std::int64_t d = 0; d < tensor.dim(); ++d)
    if (tensor.size(d) > 1) dimensions.emplace_back(tensor.stride(d), tensor.size(d));
  std::sort(dimensions.begin(), dimensions.end());
  std::int64_t reach = 0;
  for (const auto& [stride, size] : dimensions) {
    if (stride <= reach) return false;
    reach += stride * (size - 1);
  }
  return true;
}

}  // namespace

bool overlaps_itself(const at::Tensor& tensor) {
  if (tensor.is_contiguous() || tensor.numel() <= 1 || nested(tensor)) return false;
  for (std::int64_t d = 0; d < tensor.dim(); ++d)
    if (tensor.size(d) > 1 && tensor.stride(d) == 0) return true;
  if (tensor.numel() > kMostCompared) return false;
  const auto addresses = addresses_of(tensor);
  return std::adjacent_find(addresses.begin(), addresses.end()) != addresses.end();
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0) return false;
  const Range x = range_of(a), y = range_of(b);
  if (x.end <= y.begin || y.end <= x.begin) return false;
  if (fills_its_range(a) && fills_its_range(b)) return true;
  if (a.numel() > kMostCompared || b.numel() > kMostCompared) return same_memory(a, b);
  const auto left = addresses_of(a), right = addresses_of(b);
  const std::size_t a_size = a.element_size(), b_size = b.element_size();
  for (auto i = left.begin(), j = right.begin(); i != left.end() && j != right.end();) {
    if (*i + a_size <= *j)
      ++i;
    else if (*j + b_size <= *i)
      ++j;
    else
      return true;
  }
  return false;
}

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  if (a.data_ptr() != b.data_ptr() || a.numel() != b.numel()) return false;
  if (a.is_contiguous() && b.is_contiguous()) return true;
  return a.sizes() == b.sizes() && a.strides() == b.strides();
}

bool is_chunk(const at::Tensor& chunk, const at::Tensor& whole, int index, int size) {
  if (chunk.numel() * size != whole.numel()) return false;
  if (chunk.is_contiguous() && whole.is_contiguous())
    return chunk.data_ptr() ==
           static_cast<std::byte*>(whole.data_ptr()) + chunk.nbytes() * static_cast<std::size_t>(index);
  if (whole.dim() == 0 || whole.size(0) % size != 0) return false;
  const std::int64_t rows = whole.size(0) / size;
  return same_memory(chunk, whole.narrow(0, index * rows, rows));
}

Memory::Memory(const std::vector<at::Tensor>& tensors) : tensors_(tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].numel() == 0) continue;
    const Range range = range_of(tensors[i]);
    entries_.push_back({range.begin, range.end, range.end, static_cast<int>(i)});
  }
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < entries_.size(); ++i)
    entries_[i].reach = std::max(entries_[i].reach, entries_[i - 1].reach);
}

int Memory::find(const at::Tensor& tensor, int except) const {
  if (tensor.numel() == 0) return -1;
  const Range range = range_of(tensor);
  auto entry = std::lower_bound(entries_.begin(), entries_.end(), range.end,
                                [](const Entry& e, std::uintptr_t end) { return e.begin < end; });
  while (entry != entries_.begin() && (--entry)->reach > range.begin)
    if (entry->number != except && overlap(tensor, tensors_[static_cast<std::size_t>(entry->number)]))
      return entry->number;
  return -1;
}

}  // namespace vccl
