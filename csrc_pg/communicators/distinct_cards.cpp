#include "csrc_pg/communicators/distinct_cards.hpp"

#include "base/files.hpp"
#include "base/text.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "transport/variables.hpp"

namespace vccl {

std::string card_key(c10::Device device) {
  return base::text(base::first_line("/proc/sys/kernel/random/boot_id"), "/", vdev::environment().host_id,
                    "/", read_variables().host_id, "/",
                    vdev::card(device.index()).properties().physical_index);
}

Error duplicate_card(const RankNames& names, int rank, int other, c10::Device device) {
  return {ErrorCode::mismatch,
          base::text("Duplicate GPU detected : rank ", names.in_job(rank), " and rank ", names.in_job(other),
                     " both on ", vdev::device_title(), " device ",
                     vdev::card(device.index()).properties().physical_index, ": ", names.of_group(rank),
                     " uses ", device.str(), ", which is the card of ", names.rank(other),
                     ". NCCL connects no two ranks on one card. Call torch.", vdev::device_name(),
                     ".set_device(local_rank) on each rank before it first uses a card. The cards could do "
                     "it, and do with VCCL_STRICT=0.")};
}

}  // namespace vccl
