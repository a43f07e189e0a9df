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
  std::shared_ptr<Meeting> meeting;
  {
    const std::lock_guard lock(mutex_);
    auto& known = meetings_[peer];
    if (!known) {
      known = std::make_shared<Meeting>(lane.device());
      begin(lane, peer, known, timeout);
    }
    meeting = known;
  }
  const auto end = meeting->end->event();
  if (!end.reached()) end.wait();
  if (const auto error = meeting->outcome->error()) std::rethrow_exception(error);
  if (meeting->own != meeting->theirs) return;
  const auto error = duplicate_card(names_, rank_, peer, lane.device());
  lane.communicator()->fail(error.code(), error.what());
  throw error;
}

void PairMeetings::begin(MessageLane& lane, int peer, const std::shared_ptr<Meeting>& meeting,
                         Milliseconds timeout) {
  lane.under_way()->add(1);
  meeting->end = std::make_shared<JointEnd>("vccl meeting of two ranks", 2, meeting->outcome, nullptr,
                                            [count = lane.under_way()] { count->add(-1); });
  meeting->end->add_interruptible(lane.interruptible());
  const auto done = [meeting](int, const Error* failure) {
    if (failure)
      meeting->end->part_ended(torch_error(*failure), failure->code());
    else
      meeting->end->part_ended(nullptr, std::nullopt);
  };
  Signature signature;
  signature.collective = static_cast<std::uint8_t>(Collective::message);
  const MessageTag tag(MessageTag::kGreeting, true);
  const auto deadline = Deadline::in(timeout);
  auto& messages = lane.communicator()->messages();
  messages.send(peer, tag, signature, std::as_bytes(std::span(&meeting->own, 1)), deadline, done);
  messages.receive(peer, tag, signature, std::as_writable_bytes(std::span(&meeting->theirs, 1)), deadline,
                   done);
}

}  // namespace vccl
