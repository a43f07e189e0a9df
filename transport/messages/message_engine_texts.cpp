// What the errors of messages say of the message that was waited for.
#include "base/text.hpp"
#include "transport/messages/message_engine.hpp"

namespace vccl {

std::string MessageTag::text() const {
  if (number == kNoneAlone) return "no tag, outside of a batch,";
  if (number == kNoneInBatch) return "no tag, in a batch (batch_isend_irecv),";
  return base::text("tag ", number, of_cards ? " of cards" : "");
}

std::string MessageEngine::what_of(const Signature& signature, const MessageTag& tag) const {
  if (tag.number == MessageTag::kGreeting)
    return "the greeting that two ranks exchange before their first message (NCCL connects them then, so "
           "both "
           "have to call a send or a receive)";
  return base::text(group_.describe_signature(signature), " with ", tag.text());
}

/// Returns "waited for rank 1 to receive message(float32, 4 elements) with tag 5 in group G".
std::string MessageEngine::text_of(const Send& send) const {
  return base::text("waited for ", group_.rank_text(send.to), " to receive ",
                    what_of(send.signature, send.tag), " in group ", group_.name);
}

std::string MessageEngine::text_of(const Receive& receive) const {
  std::string from = group_.rank_text(receive.source >= 0 ? receive.source : receive.from);
  if (receive.from == kAnySource && receive.source < 0) from = "any source";
  return base::text("waited for ", from, receive.source >= 0 ? " to hand over " : " to send ",
                    what_of(receive.signature, receive.tag), " in group ", group_.name);
}

/// Returns the messages for the DeadlockWatch, and of a receive also what has come from its source instead.
std::vector<WatchedMessages::Pending> MessageEngine::list_pending() const {
  std::vector<Pending> all;
  for (const auto& [number, receive] : receives_) {
    const std::string from = receive.from == kAnySource ? "any source" : group_.rank_text(receive.from);
    all.push_back({number, receive.from,
                   base::text("recv from ", from, " of ", what_of(receive.signature, receive.tag),
                              " in group ", group_.name, unreceived_text(receive))});
  }
  for (const auto& [number, send] : sends_) {
    if (!send.is_awaited()) continue;
    all.push_back({number, send.to,
                   base::text("send to ", group_.rank_text(send.to), " of ",
                              what_of(send.signature, send.tag), " in group ", group_.name)});
  }
  return all;
}

/// Returns "; of what has come from there and not been received: 2 with tag 3, 1 with tag 9 of cards".
std::string MessageEngine::unreceived_text(const Receive& receive) const {
  constexpr std::size_t kMost = 8;
  const auto counts = matching_.unreceived(receive.from);
  if (counts.empty() || receive.source >= 0) return "";
  std::string text;
  std::size_t named = 0;
  for (const auto& [tag, count] : counts) {
    if (named++ == kMost) {
      text += ", and more";
      break;
    }
    text += base::text(text.empty() ? "" : ", ", count, " with ", tag.text());
  }
  if (counts.contains({receive.tag.number, !receive.tag.of_cards}))
    text += " (what a card sends is received on a card, and what the CPU sends on the CPU)";
  return base::text("; of what has come from there and not been received: ", text);
}

}  // namespace vccl
