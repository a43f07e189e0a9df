#include "transport/connections/link_security.hpp"

#include <atomic>

#include "base/text.hpp"
#include "transport/connections/zmq_api.hpp"
#include "transport/crypto/crypto_api.hpp"
#include "transport/error.hpp"
#include "transport/support/error_text.hpp"

namespace vccl {
namespace {

// Relaxed: it orders nothing. Two threads at once still write one line.
std::atomic<bool> said{false};

}  // namespace

void check_link_security(LinkSecurity security, const Log& log) {
  if (security == LinkSecurity::none) return;
  if (!zmq_api().has("curve")) {
    throw Error(
        ErrorCode::unsupported,
        base::text("VCCL_LINK_SECURITY is ", name_of(security), ", but the libzmq in use (", zmq_api().path,
                   ") has no CURVE, with which ranks on different hosts agree on keys. "
                   "Install one that has it with `pip install pyzmq`, or set VCCL_LINK_SECURITY=none "
                   "if everybody on the network may read and change what ranks send."));
  }
  if (crypto_api() || said.exchange(true, std::memory_order_relaxed)) return;
  log.always(
      base::text("libcrypto could not be loaded, so libzmq encrypts the data between hosts, which is as "
                 "safe and slower. Install OpenSSL 3 (apt-get install libssl3), or name a "
                 "libcrypto.so.3 in VCCL_CRYPTO_LIBRARY. Tried:",
                 tried_crypto_libraries()));
}

bool can_protect_blocks(LinkSecurity security) {
  return security == LinkSecurity::none || crypto_api();
}

void check_same_security(const Group& group, LinkSecurity ours, int rank, const std::string& theirs) {
  if (theirs == name_of(ours)) return;
  // The lower rank is named first, so that the text is the same whichever of the two finds the difference.
  const auto says = [&group](int who, std::string_view what) {
    return base::text(what, " for ", group.rank_text(who));
  };
  const std::string mine = says(group.rank, name_of(ours)), other = says(rank, cut_text(theirs, 32));
  const bool first = group.rank < rank;
  throw Error(ErrorCode::invalid,
              base::text("VCCL_LINK_SECURITY is ", first ? mine : other, " and ", first ? other : mine,
                         " in group ", group.name, ": set the same value on all ranks"));
}

}  // namespace vccl
