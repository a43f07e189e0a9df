// The knowledge of this process's earlier communicators about the ranks of a new communicator.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "transport/rank_names.hpp"

namespace vccl {

/// How a rank's process stopped taking part.
struct RankEnd {
  enum class How {
    died,   // the process ended without having left the group
    left,   // the rank left the group; its process may live on
    ended,  // the process has ended; this process cannot tell whether the rank had left before
    lost,   // the connection to the rank, which is on another machine, has ended
  };
  How how;
  pid_t pid;                  // the process's number in its own pid namespace
  bool process_ended = true;  // false if the rank left the group and its process lives on
  std::string host = {};      // the name of its host, if that is another host

  /// Returns "rank 3 (pid 77) died", or "rank 3 (pid 77, host node1) died". `names` are the names in the
  /// group that the text is about, and `rank` is the rank's number in it.
  std::string text(const RankNames& names, int rank) const;
};

/// Gives the knowledge of earlier communicators. The meeting of a new communicator asks for it repeatedly,
/// and whenever one of its peers has left. Rank numbers are those of the new communicator. Implementations
/// are thread-safe.
class Earlier {
 public:
  virtual ~Earlier() = default;
  /// Looks whether ranks on other hosts have failed or gone. Throws the failure of another communicator of
  /// the same group, if there is one. No rank will come to the new communicator's meeting after such a
  /// failure.
  virtual void check() = 0;
  /// Returns how `rank` has ended, or nothing as long as the rank is not known to have ended.
  virtual std::optional<RankEnd> end_of(int rank) = 0;
  /// Returns the ranks that died in the groups that this group was made from, whether or not they are in this
  /// group: "rank 0 (pid 4) died in group default_pg". Returns an empty string if no rank died.
  virtual std::string deaths() = 0;
};

}  // namespace vccl
