// The metadata of a card tensor: names with a boolean each. torch.save writes them, torch.load passes them to
// torch._utils.set_tensor_metadata, and get_tensor_metadata returns them.
#include <string>
#include <unordered_map>
#include <utility>

#include <c10/core/TensorImpl.h>
#include <torch/csrc/jit/serialization/pickler_helper.h>

#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/registration.hpp"

namespace vdev {
namespace {

using Flags = std::unordered_map<std::string, bool>;

// Holds the metadata. It never changes, because a tensor shares it with its shallow copies (detach(),
// parameters).
struct Metadata final : c10::BackendMeta {
  explicit Metadata(Flags f) : flags(std::move(f)) {}
  const Flags flags;
};

void add_metadata(const at::Tensor& tensor, Flags& metadata) {
  if (const auto* known = dynamic_cast<const Metadata*>(tensor.unsafeGetTensorImpl()->get_backend_meta())) {
    metadata.insert(known->flags.begin(), known->flags.end());
  }
}

void set_metadata(const at::Tensor& tensor, Flags& metadata) {
  tensor.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<Metadata>(std::move(metadata)));
}

const Registration metadata_registration([] {
  // torch offers this to devices that are not built in, and CUDA's tensors have no such metadata.
  if (pose() == Pose::vdev) {
    torch::jit::TensorBackendMetaRegistry(device_type(), &add_metadata, &set_metadata);
  }
});

}  // namespace
}  // namespace vdev
