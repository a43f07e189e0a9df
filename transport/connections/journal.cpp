#include "transport/connections/journal.hpp"

#include "base/text.hpp"

namespace vccl {

msgpack::Map Journal::Message::renewed(std::uint64_t heard) const {
  msgpack::Map fields = msgpack::decode(control).as_map();
  fields["heard"] = heard;
  return fields;
}

void Journal::keep(std::string control, std::optional<ZmqMessage> payload) {
  if (kept_.size() >= most_) {
    throw Error(ErrorCode::protocol,
                base::text("no confirmation of ", kept_.size(), " messages that it was sent"));
  }
  kept_.push_back({std::move(control), std::move(payload)});
  ++sent_;
}

std::deque<Journal::Message> Journal::take_back() {
  sent_ = confirmed_;
  return std::exchange(kept_, {});
}

void Journal::confirm(std::uint64_t heard) {
  if (heard < confirmed_ || heard > sent_) {
    throw Error(ErrorCode::protocol,
                base::text("the confirmation of ", heard, " messages, of ", sent_, " that it was sent and ",
                           confirmed_, " that it has confirmed before"));
  }
  for (; confirmed_ < heard; ++confirmed_)
    if (!kept_.empty()) kept_.pop_front();
}

}  // namespace vccl
