// Races between processes that share memory of cards, and the order that processes give each other.
//
// Each process appends what it does with such memory, and what its part in a meeting comes behind, to a
// journal of the memory's owner (sanitizer/processes/). Each process judges its own accesses. Nothing is
// written before the first memory or event is shared.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Storage.h>

#include "csrc_device/torch/races/watch.hpp"

namespace vdev::races {

inline std::atomic<bool> sharing{false};
/// Returns whether this process shares memory or events with others. Relaxed, like is_on().
inline bool shares_memory() noexcept {
  return sharing.load(std::memory_order_relaxed);
}

/// Returns what the receiver of a storage has to know: give it to receive(). Call this in the thread that
/// sends the storage. The receiver's current stream then comes behind what the current stream of the
/// storage's card has been given, as with CUDA. `rank` is this process's in its job, or -1.
std::string share(const c10::Storage& storage, int rank);
/// Call this when a storage of another process has been received. Does nothing if that process has ended.
void receive(const c10::Storage& storage, std::string_view sent, int rank);

/// Tells other processes what the calling thread comes behind: call this before the program sends them
/// something through `channel`, which has the same name for the receivers. `ends`: the process ends, which
/// ends all of its work.
void publish_host(std::string_view channel, bool ends);
/// Orders the calling thread behind what was published for the channel. Call this once the program has
/// received something.
void wait_for_hosts(std::string_view channel);
/// Does the same for an event of several processes, which has this ProcessEvent::identity().
void publish_event(std::string_view identity, const Point& record);
Point record_of_event(std::string_view identity);

/// Describes this process's part in a collective or message.
struct Meeting {
  std::string name;              // the same on all members, and of no other meeting
  std::uint64_t number = 0;      // grows from one meeting of that name to the next, alike on all members
  std::uint32_t publishers = 0;  // how many members others wait for
  bool publishes = false;        // whether others wait for this one
  bool waits = false;            // whether this one waits for others
};
/// Returns 1 for the first meeting of that name, and then one more each time.
std::uint64_t next_meeting(const std::string& name);
/// Call this before the operation, with what its start comes behind.
void come_to(const Meeting& meeting, const Point& before);
/// Returns what comes behind the operation's end.
Point end_of(const Meeting& meeting);

/// Compares accesses with those of other processes, if they touch shared memory. `behind` is the point behind
/// them. Reports races.
void note_shared(Lane lane, Site site, const std::vector<Touched>& touched, const Point& behind);
/// Reports races that could not be decided before, because another process had not come to a meeting yet.
void judge_shared();
/// Call this when the process gives memory back.
void forget_shared(const void* block);

}  // namespace vdev::races
