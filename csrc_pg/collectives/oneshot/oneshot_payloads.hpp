// The payloads that oneshot_payload() has made.
#pragma once

#include "csrc_pg/collectives/buffers/payloads.hpp"
#include "csrc_pg/collectives/oneshot/oneshot.hpp"

namespace vccl {

inline Payloads oneshot_payloads(Communicator& communicator, const Call& call, PayloadRoute route) {
  const auto own = oneshot_payload(call, communicator.rank(), communicator.size());
  return Payloads(communicator, own->bytes, route);
}

}  // namespace vccl
