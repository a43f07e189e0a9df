// The waits for neighbours on other hosts.
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <optional>

#include "base/periods.hpp"
#include "base/schedule.hpp"
#include "base/spinning.hpp"
#include "base/text.hpp"
#include "base/thread_waits.hpp"
#include "transport/deadlock_watch.hpp"
#include "transport/explanation.hpp"
#include "transport/interruption_check.hpp"
#include "transport/links/remote_links.hpp"
#include "transport/support/error_text.hpp"

namespace vccl {
namespace {

constexpr Milliseconds kLongGone{500};
// A wait that has lasted this long may be part of a deadlock.
constexpr Milliseconds kLasting{200};

}  // namespace

void RemoteLinks::wait(FunctionRef<bool()> ready, RemoteLink& link, const char* what) {
  const base::schedule::Outside elsewhere;
  const base::ThreadWaits waits;
  auto next_interruption = Clock::now() + base::kInterruptionPeriod,
       next_look = Clock::now() + base::kLongestSleep;
  poll(Milliseconds(0));
  const std::size_t ranks = group_.host.ranks.size() + group_.elsewhere.size();
  const auto begin = Clock::now();
  std::optional<LastingWait> lasting;
  WaitWarning warning(begin, operation_.deadline(), group_.warn_after);
  int yields = base::yields_for_other_host(static_cast<int>(ranks), group_.cores);
  while (!look(ready, link, what)) {
    if (yields > 0) {
      --yields;
      sched_yield();
      poll(Milliseconds(0));
      continue;
    }
    const auto now = Clock::now();
    if (now >= next_interruption) {
      next_interruption = now + base::kInterruptionPeriod;
      if (const std::string by = interruption(); !by.empty())
        failures_.raise_interrupted(
            by, base::text(group_.rank_text(link.rank), " ", what, " ", operation_.text()));
    }
    if (now >= next_look) {
      next_look = now + base::kLongestSleep;
      failures_.check_meeting();
      for (RemoteLinks* others : others_) others->pump();  // what this rank waits for may have failed there
    }
    if (!lasting && now - begin >= kLasting) {
      auto awaited = operation_.far_needs();
      const bool listed = std::ranges::find(awaited, link.rank) != awaited.end();
      if (!listed && group_.far.contains(link.rank)) awaited.insert(awaited.begin(), link.rank);
      lasting.emplace(group_, operation_.sequence(), operation_.call_text(), std::move(awaited));
    }
    if (warning.due(now)) warn(now - begin, link, what);
    tell_releases();
    const auto left = std::chrono::ceil<Milliseconds>(operation_.deadline().at - now);
    poll(std::clamp(left, Milliseconds(0), base::kLongestSleep));
  }
}

bool RemoteLinks::look(FunctionRef<bool()> ready, RemoteLink& link, const char* what) {
  std::optional<Error> wrong, end;
  bool done;
  {
    std::lock_guard lock(mutex_);
    wrong = receive_all();
    pass_on_losses();
    done = ready();
    if (!done) end = end_of(&link, what);
  }
  // A peer that gave up in the meeting may break the protocol or close the connection by that. The peer, or
  // the rank that gave up first, has announced the reason.
  if ((wrong || end) && !done) failures_.await_reason();
  // This happens without the mutex, because failing sends to both neighbours.
  if (wrong) failures_.raise(wrong->code(), wrong->what());
  if (failures_.happened()) spread_failure();
  if (done) return true;  // whatever has failed, the awaited part of this operation came before
  failures_.check();
  if (end) failures_.raise_for_end(end->code(), end->what());
  if (operation_.deadline().passed()) {
    failures_.raise(ErrorCode::timeout,
                    base::text(wait_text(operation_.deadline().length, link, what),
                               ". Look for a rank that is stuck or slow, or raise the timeout; "
                               "VCCL_SOCKET_IFNAME chooses the network interface.",
                               explanation(operation_.deadline().length)));
  }
  return false;
}

std::string RemoteLinks::wait_text(Milliseconds waited, const RemoteLink& link, const char* what) const {
  return base::text(group_.own_text(), " waited ", duration_text(waited), " for ", link.peer_text(),
                    " on another host ", what, " ", operation_.text());
}

void RemoteLinks::warn(std::chrono::nanoseconds waited, const RemoteLink& link, const char* what) const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(waited);
  group_.log.always(
      base::text(wait_text(seconds, link, what), ", and goes on waiting.", explanation(waited)));
}

const RemoteLink* RemoteLinks::long_gone() const {
  for (const RemoteLink* link : {left_.get(), right_.get()}) {
    if (link && (link->is(State::open) || link->is(State::unknown)) && link->end.over(kLongGone)) return link;
  }
  return nullptr;
}

std::optional<Error> RemoteLinks::end_of(const RemoteLink* link, const char* what) const {
  const RemoteLink* gone = link && (link->is(State::left) || link->end.over()) ? link : long_gone();
  if (!gone) return std::nullopt;
  const bool left = gone->is(State::left);
  const std::string whom = !link          ? ""
                           : gone == link ? "for it "
                                          : base::text("for ", group_.rank_text(link->rank), " ");
  const std::string us = left ? group_.own_text() : "it";
  return Error(left ? ErrorCode::peer_left : ErrorCode::peer_dead,
               base::text(gone->end_text(), " while ", us, " waited ", whom, what, " ", operation_.text(),
                          left ? "" : kWhyGone));
}

void RemoteLinks::poll(Milliseconds time) {
  std::lock_guard lock(mutex_);
  poll_locked(time);
}

// This asks the kernel once for all sockets. Asking libzmq costs two system calls for each of them.
void RemoteLinks::poll_locked(Milliseconds time) {
  pollfd items[9];
  bool* flags[9];
  bool woken = false;
  nfds_t count = 0;
  const auto add = [&](int descriptor, bool& flag) {
    items[count] = {descriptor, POLLIN, 0};
    flags[count++] = &flag;
  };
  for (RemoteLink* link : {left_.get(), right_.get()}) {
    if (!link || link->socket->closed() || link->end.over()) continue;
    // The other two flags stay set after a stranger's connection has ended, and are looked at every time.
    if (link->ready.control || (link->receiver && link->ready.stream && link->streamed.empty()))
      time = Milliseconds(0);
    add(link->socket->data_descriptor(), link->ready.control);
    add(link->socket->monitor_descriptor(), link->ready.monitor);
    if (link->receiver && link->streamed.empty())
      add(link->receiver->socket().data_descriptor(), link->ready.stream);
    if (link->sender && !link->sender->socket().closed())
      add(link->sender->socket().monitor_descriptor(), link->ready.broken);
  }
  add(wake_.get(), woken);
  if (::poll(items, count, static_cast<int>(time.count())) <= 0) return;
  for (nfds_t i = 0; i < count; ++i) *flags[i] |= items[i].revents != 0;
  eventfd_t value;
  if (woken) eventfd_read(wake_.get(), &value);
}

}  // namespace vccl
