#include "transport/connections/link_settings.hpp"

#include <algorithm>

#include "transport/system/interface.hpp"
#include "transport/system/machine.hpp"

namespace vccl {

LinkSettings LinkSettings::of(int rank, const std::vector<RankRecord>& records, const Variables& variables) {
  const RankRecord& own = records[static_cast<std::size_t>(rank)];
  const bool one_machine =
      std::ranges::all_of(records, [&](const RankRecord& record) { return record.machine == own.machine; });
  return {.address = interface_address(variables.socket_interface, one_machine),
          .host = own.host_id.empty() ? host_name() : own.host_id,
          .ports = variables.ports,
          .security = variables.link_security,
          .silence = variables.link_timeout};
}

}  // namespace vccl
