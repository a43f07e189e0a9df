// Which cards reach each other's memory, as programs ask it about NVLink.
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/symm_mem/DMAConnectivity.hpp>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/registration.hpp"

namespace vccl::symmetric {
namespace {

constexpr const char* kConnection = "nvlink";

/// Each card reaches every other one, so there is one link between any two.
class Detector final : public c10d::DMAConnectivityDetector {
 public:
  c10::intrusive_ptr<c10d::DMAConnectivity> detect() override {
    const auto cards = static_cast<std::size_t>(vdev::card_count());
    std::vector<std::vector<int>> links(cards, std::vector<int>(cards, 1));
    for (std::size_t card = 0; card < cards; ++card) links[card][card] = 0;
    return c10::make_intrusive<c10d::DMAConnectivity>(vdev::device_type(), kConnection, std::move(links));
  }
};

const vdev::Registration registered([] {
  c10d::register_dma_connectivity_detector(vdev::device_type(), kConnection, c10::make_intrusive<Detector>());
});

}  // namespace
}  // namespace vccl::symmetric
