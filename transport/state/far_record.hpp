// What a process tells those on other hosts of its waits, and the form in which that lies in the store.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "transport/shared/wait_record.hpp"
#include "transport/state/wait_circle.hpp"

namespace vccl {

/// What a process has done in groups of several hosts. Others see by it whether their waits are for it.
struct WaitFacts {
  static constexpr std::size_t kMost = 256;  // of each kind

  /// How many operations and meetings of a communicator the process has begun.
  struct Begun {
    std::uint64_t communicator = 0, operations = 0, meetings = 0;
    bool operator==(const Begun&) const = default;
  };
  /// How many control messages of the communicator's message links the process has sent to another.
  struct Sent {
    std::uint64_t communicator = 0;
    Token to = 0;
    std::uint64_t messages = 0;
    bool operator==(const Sent&) const = default;
  };

  std::vector<Begun> begun;
  std::vector<Sent> sent;
  bool lists_all_sent = true;  // whether everybody to whom something was sent is in `sent`

  bool operator==(const WaitFacts&) const = default;
  /// Returns whether it is certain that the process has not begun this operation, or meeting, of the
  /// communicator.
  bool has_not_begun(std::uint64_t communicator, std::uint64_t number, bool is_meeting) const;
  /// Returns whether the process `to` has heard everything that was sent to it, if it has heard so much.
  bool has_heard_all(std::uint64_t communicator, Token to, std::uint64_t heard) const;
};

struct FarRecord {
  WaitRecord::Copy copy;
  WaitFacts facts;
};
using FarRecords = std::map<Token, FarRecord>;

/// Returns the key under which a process publishes its record.
std::string far_key(Token token);
std::string encode(const FarRecord& record);
/// Throws Error(protocol) for what no process writes. All counts of the result are within their bounds.
FarRecord decode_far_record(const std::string& bytes);

}  // namespace vccl
