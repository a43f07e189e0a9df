// The thread that carries messages while no call does.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <system_error>

#include "base/schedule.hpp"
#include "base/signals.hpp"
#include "base/spinning.hpp"
#include "base/text.hpp"
#include "transport/messages/message_engine.hpp"

namespace vccl {
namespace {

// For how long after the last message the thread looks by itself now and then.
constexpr auto kDoze = std::chrono::seconds(1);
constexpr std::chrono::nanoseconds kIdle = std::chrono::seconds(1);

}  // namespace

void MessageEngine::start_thread() {
  base::SignalsBlocked blocked;
  try {
    const base::schedule::NewThread scheduled;
    thread_ = std::thread([this, scheduled] {
      scheduled.begin();
      run();
      base::schedule::end_thread();
    });
    pthread_setname_np(thread_.native_handle(), "vccl messages");
  } catch (const std::system_error& error) {
    failures_.fail(ErrorCode::system, base::text(group_.own_text(), " of group ", group_.name,
                                                 " could not start its message thread: ", error.what()));
    stop(failures_.error());
  }
}

void MessageEngine::run() {
  auto last_effect = Clock::now();
  while (true) {
    base::schedule::point(base::schedule::Point::task);
    const Round last = round(std::unique_lock(mutex_));
    const auto now = Clock::now();
    report_if_lasting(last, now);
    if (last.over) return;
    if (last.moved || has_intake()) {
      last_effect = now;
    } else if (last.under_way && now - last_effect < base::patience_for_message() &&
               !base::schedule::is_on()) {
      sched_yield();
    } else if (sleep(last.under_way || now - last_effect < kDoze)) {
      last_effect = Clock::now();
    }
  }
}

/// Sleeps unless there is something to do. Returns whether there was.
bool MessageEngine::sleep(bool doze) {
  // The word is read first: a later wake-up changes it, and the futex then does not sleep.
  const std::uint32_t seen = line_.wakeups.load();
  std::chrono::nanoseconds time = kIdle;
  {
    std::lock_guard lock(mutex_);
    if (doze) time = std::min<std::chrono::nanoseconds>(base::kLongestSleep, next_deadline_ - Clock::now());
    line_.sleep.store(under_way() ? MessageLine::waiting : doze ? MessageLine::dozing : MessageLine::idle);
  }
  const Round last = round(std::unique_lock(mutex_));
  const bool news = last.moved || last.over || has_intake();
  // A call that came since then and left something under way has found the thread idle or dozing, and has
  // changed that state.
  if (!news && time.count() > 0) {
    const base::schedule::Outside elsewhere;
    sleep_for_messages(line_, seen, time);
  }
  line_.sleep.store(MessageLine::awake);
  return news;
}

}  // namespace vccl
