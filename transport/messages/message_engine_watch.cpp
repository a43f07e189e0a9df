// What the DeadlockWatch and the user learn of messages that do not move.
#include <chrono>
#include <optional>
#include <string>

#include "base/text.hpp"
#include "transport/explanation.hpp"
#include "transport/messages/message_engine.hpp"
#include "transport/support/error_text.hpp"

namespace vccl {
namespace {

// Messages that have not moved for this long may be part of a deadlock.
constexpr auto kLasting = std::chrono::milliseconds(200);

}  // namespace

/// Lets the DeadlockWatch look at messages that have not moved for a while. Only the thread calls this.
void MessageEngine::report_if_lasting(const Round& last, Clock::time_point now) {
  const bool stands = last.under_way && !last.moved && !last.over;
  if (!stands) {
    stands_since_ = now;
    warned_ = false;
  }
  if (!warned_ && group_.warn_after.count() > 0 && now - stands_since_ >= group_.warn_after &&
      program_waits())
    warn(now);
  const bool lasting = now - stands_since_ >= kLasting;
  if (lasting && !reported_) DeadlockWatch::of_this_process().watch(group_, *this);
  if (!lasting && reported_) DeadlockWatch::of_this_process().let_be(group_);
  reported_ = lasting;
}

void MessageEngine::warn(Clock::time_point now) {
  warned_ = true;
  std::string first;
  {
    std::lock_guard lock(mutex_);
    const auto messages = list_pending();
    if (messages.empty()) return;
    first = messages.front().text;
  }
  const auto waited = now - stands_since_;
  group_.log.always(base::text(group_.own_text(), " has waited ",
                               duration_text(std::chrono::duration_cast<std::chrono::seconds>(waited)),
                               " in a ", first, ", and goes on waiting.", explanation(waited)));
}

// The watch calls this on its own thread.
std::optional<std::vector<WatchedMessages::Pending>> MessageEngine::pending() noexcept {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return std::nullopt;
  if (stopped_ || over_) return std::vector<Pending>();
  const bool moves = begin_calls() | move_on();
  if (!moves && finished_.empty() && taking_.empty()) return list_pending();
  lock.unlock();
  wake_messages(line_, true);  // for what has ended, and the callbacks
  return std::nullopt;
}

}  // namespace vccl
