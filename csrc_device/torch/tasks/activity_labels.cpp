#include "csrc_device/torch/tasks/activity_labels.hpp"

#include <string>

#include "base/text.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/memory/host_allocator.hpp"

namespace vdev {
namespace {

const char* kind_of_memory(const at::Tensor& tensor) {
  if (is_card(tensor.device())) return "Device";
  return tensor.numel() != 0 && is_pinned(tensor.const_data_ptr()) ? "Pinned" : "Pageable";
}

const char* direction(const at::Tensor& from, const at::Tensor& to) {
  const bool from_card = is_card(from.device()), to_card = is_card(to.device());
  if (from_card && to_card) return from.device() == to.device() ? "DtoD" : "PtoP";
  return to_card ? "HtoD" : "DtoH";
}

}  // namespace

// The dots are those of torch.ops. The operator's range on the host has colons, so that the two differ.
ActivityLabel label_of(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  std::string text = name.name;
  if (const auto colons = text.find("::"); colons != std::string::npos) text.replace(colons, 2, ".");
  if (!name.overload_name.empty()) text += base::text(".", name.overload_name);
  return {ActivityKind::kOperator, std::move(text)};
}

ActivityLabel label_of_copy(const at::Tensor& from, const at::Tensor& to) {
  return {
      ActivityKind::kCopy,
      base::text("Memcpy ", direction(from, to), " (", kind_of_memory(from), " -> ", kind_of_memory(to), ")"),
      to.nbytes()};
}

ActivityLabel label_of_reading(const at::Tensor& tensor) {
  return {ActivityKind::kCopy, "Memcpy DtoH (Device -> Pageable)",
          static_cast<std::size_t>(tensor.element_size())};
}

}  // namespace vdev
