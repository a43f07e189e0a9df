#include "csrc_pg/tasks/pair_meetings.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>

#include "base/hash.hpp"
#include "csrc_pg/collectives/call.hpp"
#include "csrc_pg/communicators/distinct_cards.hpp"
#include "csrc_pg/operations/errors.hpp"
#include "csrc_pg/operations/outcome.hpp"
#include "csrc_pg/tasks/message_task.hpp"

namespace vccl {

/// Each rank sends its card to the other one. The messages that are under way keep this.
struct PairMeetings::Meeting {
  explicit Meeting(c10::Device device) : own(base::hash_text(card_key(device))) {}

  std::uint64_t own, theirs = 0;  // hashes of the cards' keys
  std::shared_ptr<Outcome> outcome = std::make_shared<Outcome>();
  std::shared_ptr<JointEnd> end;
};

void PairMeetings::meet(MessageLane& lane, int peer, Milliseconds timeout) {
  if (peer == rank_) return;
  auto& messages = lane.communicator()->messages();
  const auto [meeting, is_first] = enter(lane, peer);
  if (is_first) greet(messages, peer, meeting, Deadline::in(timeout));
  const auto end = meeting->end->event();
  if (!end.reached()) end.wait();
  if (const auto error = meeting->outcome->error()) std::rethrow_exception(error);
  if (meeting->own != meeting->theirs) return;
  const auto error = duplicate_card(names_, rank_, peer, lane.device());
  lane.communicator()->fail(error.code(), error.what());
  throw error;
}

std::pair<std::shared_ptr<PairMeetings::Meeting>, bool> PairMeetings::enter(MessageLane& lane, int peer) {
  const std::lock_guard lock(mutex_);
  auto& known = meetings_[peer];
  if (known) return {known, false};
  const auto made = std::make_shared<Meeting>(lane.device());
  made->end = std::make_shared<JointEnd>("vccl meeting of two ranks", 2, made->outcome, nullptr,
                                         [count = lane.under_way()] { count->add(-1); });
  made->end->add_interruptible(lane.interruptible());
  lane.under_way()->add(1);
  known = made;
  return {made, true};
}

// Without the lock: the calls also move messages of other ranks, and run callbacks.
void PairMeetings::greet(Messages& messages, int peer, const std::shared_ptr<Meeting>& meeting,
                         const Deadline& deadline) {
  const auto done = [meeting](int, const Error* failure) {
    if (failure)
      meeting->end->part_ended(torch_error(*failure), failure->code());
    else
      meeting->end->part_ended(nullptr, std::nullopt);
  };
  Signature signature;
  signature.collective = static_cast<std::uint8_t>(Collective::message);
  const MessageTag tag(MessageTag::kGreeting, true);
  messages.send(peer, tag, signature, std::as_bytes(std::span(&meeting->own, 1)), deadline, done);
  messages.receive(peer, tag, signature, std::as_writable_bytes(std::span(&meeting->theirs, 1)), deadline,
                   done);
}

}  // namespace vccl
