// Which processes have memory of a card.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace vdev {

/// Is a process that has reserved memory of a card.
struct CardUser {
  std::int32_t pid = 0;  // in the process's own pid namespace
  bool foreign = false;  // the process is in another pid namespace, so that `pid` means nothing here
  bool self = false;     // it is the calling process
  std::string name;      // the beginning of its command line
  std::size_t bytes = 0;
};

}  // namespace vdev
