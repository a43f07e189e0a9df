// How long a connection that was cut may take to be made again.
//
// The end of a connection is noticed at once if it is reset, and after 0.7 of LinkSettings::silence if
// nothing comes any more (zmq_socket.cpp). Then the rank that had connected connects again, to the same
// endpoint. The times add up to less than the silence, so a peer that has vanished is reported before that
// has passed.
//
// While a group is made, ranks may be slow to answer. So each of these times is then kMeeting times as long.
#pragma once

#include <algorithm>

#include "transport/deadline.hpp"

namespace vccl {

/// The making again of one connection, from when its end was noticed. Guarded by its owner, who calls look()
/// at least every 100 ms, but may be stopped.
class Resumption {
 public:
  static constexpr int kMeeting = 5;

  explicit Resumption(Milliseconds silence)
      : silence_(silence), since_(Clock::now()), looked_(since_), begun_(since_) {}

  /// How long the rank that connects tries, and how long the other one waits for it. The other one may have
  /// noticed the end earlier, by the period of heartbeats.
  Milliseconds trying() const { return silence_ / 5; }
  Milliseconds waiting() const { return silence_ / 4; }
  /// How long it has taken.
  Milliseconds lasted() const { return std::chrono::duration_cast<Milliseconds>(Clock::now() - since_); }

  /// Returns whether it has taken `time`. The time between two calls counts for kLook at most: a rank that
  /// was stopped, or had no processor, has not tried meanwhile.
  bool look(Milliseconds time) {
    const auto now = Clock::now();
    counted_ += std::min<Clock::duration>(now - looked_, kLook);
    looked_ = now;
    return counted_ >= time;
  }

  /// Call this when another attempt to connect begins.
  void begin_attempt() {
    ++attempts_;
    begun_ = Clock::now();
    failed_ = false;
  }
  /// Call this when the attempt under way has failed. Before the first one, this delays that one.
  void fail_attempt() { failed_ = true; }
  bool attempt_failed() const { return failed_; }
  int attempts() const { return attempts_; }
  /// Returns whether to begin another attempt: the first one, one a little after another that has failed, or
  /// one after another that takes too long. The peer's socket leaves a connection hanging that comes before
  /// the end of the last one was read there, so the first attempts are short. Later ones are longer, because
  /// the peer may also be slow.
  bool attempt_is_due() const {
    if (attempts_ == 0 && !failed_) return true;
    const auto longest = std::min(kAttempt * (1 << std::clamp(attempts_ - 1, 0, 4)), kLongestAttempt);
    return Clock::now() - begun_ >= (failed_ ? kPause : longest);
  }

 private:
  static constexpr Milliseconds kLook{150}, kAttempt{200}, kLongestAttempt{2'000}, kPause{50};

  const Milliseconds silence_;
  const Clock::time_point since_;
  Clock::time_point looked_;
  Clock::duration counted_{};
  Clock::time_point begun_;  // when the attempt under way has begun
  int attempts_ = 0;
  bool failed_ = false;  // the attempt under way
};

}  // namespace vccl
