// How a rank ends its links for messages: what it still sends, and what it waits for.
#include <unistd.h>

#include <algorithm>

#include "transport/messages/message_links.hpp"

namespace vccl {

void MessageLinks::stop() noexcept {
  if (std::exchange(stopped_, true)) return;
  try {
    // A peer that has connected, but whose hello was not read yet, is informed as well.
    while (auto received = listener_->receive()) {
      if (!routes_.contains(received->route)) greet(*received);
    }
    const bool failed = failures_.happened();
    if (!failed) deliver_rest();
    for (auto& link : links_) {
      if (link) say_last(*link, failed);
    }
    await_last_words();
  } catch (const std::exception&) {
    // The peers notice the ends of the connections instead.
  }
  for (auto& link : links_) {
    if (!link) continue;
    link->peer.forget();
    disconnect(*link);
    close_streams(*link);
  }
  watch_.reset();
  closed_.close(*listener_);
  closed_.wait(Milliseconds(600), group_.log);
}

/// Sends the short messages that wait. They count as done once they are copied, so a rank that leaves has to
/// send them.
void MessageLinks::deliver_rest() {
  const Deadline patience = Deadline::in(ClosedSockets::kLinger);
  while (true) {
    bool waiting = false;
    for (auto& link : links_) {
      if (!link || link->is(State::lost) || !link->peer.waiting()) continue;
      if (!link->socket && link->route.empty()) connect(*link);
      flush(*link);
      waiting |= link->peer.waiting() && path_to(*link).has_value();
    }
    if (!waiting || patience.passed()) return;
    usleep(200);
  }
}

/// Reads what comes until every peer that was told this rank's last words has said its own too or has gone,
/// for kFarewell at most.
void MessageLinks::await_last_words() {
  const Deadline patience = Deadline::in(kFarewell);
  const auto hear = [this](Link& link, const ZmqSocket::Received& received) {
    try {
      link.read_last_words(read_control(received.control, link.rank, group_.names));
    } catch (const Error&) {
      // It was a failure, which is too late to be told, or no message of a rank.
    }
    return true;
  };
  const auto awaited = [](const auto& link) {
    return link && link->is(State::told) && !link->heard_last_words() &&
           !(link->route.empty() ? link->end.over() : link->route_end.over());
  };
  while (std::ranges::any_of(links_, awaited) && !patience.passed()) {
    while (auto received = listener_->receive()) {
      const auto known = routes_.find(received->route);
      if (known != routes_.end() && known->second >= 0)
        hear(*links_[static_cast<std::size_t>(known->second)], *received);
    }
    for (auto& link : links_) {
      if (link && link->socket && !link->socket->closed())
        link->receive([&](const ZmqSocket::Received& received) { return hear(*link, received); });
    }
    usleep(100);
  }
}

/// Sends the failure on every connection to the peer, because one of them may be broken. Otherwise sends that
/// this rank leaves, after everything else that was sent.
void MessageLinks::say_last(Link& link, bool failed) {
  const auto last = link.take_last_words(failed);
  if (!last) return;
  if (!failed) {
    if (const auto path = path_to(link)) path->socket->post_last(path->route, *last);
    return;
  }
  if (link.socket && !link.socket->closed()) link.socket->post_last({}, *last);
  if (!link.route.empty() && !link.route_end.over()) listener_->post_last(link.route, *last);
}

}  // namespace vccl
