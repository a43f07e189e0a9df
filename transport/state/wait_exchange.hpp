// Tells other hosts what this process waits for, and learns the same of their processes, over the store.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/deadline.hpp"
#include "transport/state/far_record.hpp"
#include "transport/store.hpp"

namespace vccl {

/// Writes the record of this process to the rendezvous store, and reads those of others there. Every process
/// reaches the store, whatever links it has, and the keys of the links have come from there.
///
/// A thread of its own does this, on a connection of its own, because a store may not answer: whoever calls
/// never waits. The thread works in rounds. In each, it writes first and then reads, so at the end of a round
/// the store has what was written. The calls must come one at a time.
class WaitExchange {
 public:
  struct Turn {
    Token token = 0;  // of this process
    FarRecord own;
    std::vector<Token> wanted;
    // This process is in a circle of waits: everything is written and read. Otherwise only a change is
    // written, and few records are read, because many ranks may wait for long for one that is only slow.
    bool urgent = false;
  };

  WaitExchange();
  /// Lets a round begin soon, unless the last one has not ended, or is not old enough. Without a thread, it
  /// starts one, which connects by `connect`.
  void turn(const ConnectStore& connect, Turn turn);
  /// Removes the record of this process from the store, and ends the thread. Blocks for at most `patience`
  /// until that is done, and an earlier end(), because the store may not answer.
  void end(Milliseconds patience = Milliseconds(0)) noexcept;
  /// Returns the records that were read last.
  FarRecords found() const;
  /// Returns how many rounds have begun.
  std::uint64_t rounds() const;
  /// Returns for how long the store has not answered, in words, or why it cannot be asked. Returns an empty
  /// text if it answers.
  std::string silence() const;

 private:
  struct Shared;
  class Thread;
  // Each is shared with its thread, which may outlive this object.
  std::shared_ptr<Shared> shared_, ended_;
};

}  // namespace vccl
