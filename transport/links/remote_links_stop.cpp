// How a rank's links end: the failure or the last words that it still sends, and what it waits for.
#include <sys/eventfd.h>
#include <unistd.h>

#include "transport/connections/control_messages.hpp"
#include "transport/links/remote_links.hpp"

namespace vccl {

RemoteLinks::~RemoteLinks() {
  close();
}

void RemoteLinks::spread_failure() noexcept {
  // The thread that holds the mutex checks for the failure when it releases the mutex, after its poll() at
  // the latest.
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock)
    say_last(true);
  else
    eventfd_write(wake_.get(), 1);
}

void RemoteLinks::say_last(bool failed) noexcept {
  for (RemoteLink* link : {left_.get(), right_.get()}) {
    try {
      if (!link || link->socket->closed() || !link->in_touch()) continue;
      if (const auto last = link->take_last_words(failed)) link->post_last(*last);
    } catch (const std::exception&) {
      // The peer notices the end of the connection instead.
    }
  }
}

// A link gives up by itself when its connection could not be made again within a part of its silence. Where
// the group has failed, there are only last words to say, and kFarewell is enough.
void RemoteLinks::await_touch() noexcept {
  const std::lock_guard lock(mutex_);
  const auto waits = [&](RemoteLink* link) {
    if (!link || link->socket->closed()) return false;
    link->ready = {};  // nobody polls here
    // The first look may notice that the connection was cut.
    return !receive_from(*link) && !link->in_touch() && !link->end.over();
  };
  const auto begin = Clock::now();
  for (;;) {
    const bool left = waits(left_.get()), right = waits(right_.get());
    if (!left && !right) return;
    const auto silence = (left ? left_ : right_)->settings.silence;
    if (Clock::now() - begin >= (failures_.happened() ? kFarewell : silence)) return;
    usleep(100);
  }
}

/// Reads what comes from the neighbours until both have said their last words or have gone, for kFarewell at
/// most.
void RemoteLinks::await_last_words() noexcept {
  const Deadline patience = Deadline::in(kFarewell);
  for (RemoteLink* link : {left_.get(), right_.get()}) {
    try {
      while (link && link->is(State::told) && !link->heard_last_words() && !link->end.over() &&
             !patience.passed()) {
        link->receive([&](ZmqSocket::Received received) {
          return !link->read_last_words(read_control(received.control, link->rank, group_.names));
        });
        if (!link->heard_last_words()) usleep(100);
      }
    } catch (const std::exception&) {
      // It was a failure, or no message of a rank. Nothing else is expected behind it.
    }
  }
}

void RemoteLinks::close() noexcept {
  std::lock_guard lock(mutex_);
  say_last(failures_.happened());
  await_last_words();
  ClosedSockets closed;
  for (RemoteLink* link : {left_.get(), right_.get()}) {
    if (!link) continue;
    link->finish();
    closed.close(*link->socket);
    if (link->sender) closed.close(link->sender->socket());
    if (link->receiver) closed.close(link->receiver->socket());
  }
  closed.wait(Milliseconds(1'000), group_.log);
}

}  // namespace vccl
