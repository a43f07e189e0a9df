// Ten small programs, each with a bug that shows in a few orders only, and each with its repaired twin.
#pragma once

#include <array>
#include <vector>

#include "tests/native/base/threads_of_schedule.hpp"

/// A program that plays once under a plan. Returns whether it went wrong.
using Program = bool (*)(const schedule::Plan& plan, bool repaired);

namespace bugs {

inline constexpr int kSteps = 6;  // of threads that do something else before

inline void do_something_else() {
  for (int i = 0; i < kSteps; ++i) step();
}

/// Plays the body on two threads, of which the first does something else before.
template <class Body>
void play_twice(const schedule::Plan& plan, const Body& body) {
  play(plan, {[&] {
                do_something_else();
                body();
              },
              body});
}

/// The waiter looks, and sleeps a moment later: a wake-up in between is lost.
inline bool lost_wake_up(const schedule::Plan& plan, bool repaired) {
  Stuck stuck(2);
  Lock lock(stuck);
  Condition changed(stuck);
  bool ready = false;
  play(plan, {[&] {
                do_something_else();
                lock.take();
                while (!ready && !stuck.is_stuck()) {
                  if (repaired) {
                    changed.wait(lock);
                    continue;
                  }
                  lock.give_back();
                  changed.wait();
                  lock.take();
                }
                lock.give_back();
                stuck.ended();
              },
              [&] {
                lock.take();
                ready = true;
                changed.notify();
                lock.give_back();
                stuck.ended();
              }});
  return stuck.is_stuck();
}

/// A thread that finds that all is over returns without giving the lock back.
inline bool missed_release(const schedule::Plan& plan, bool repaired) {
  Stuck stuck(2);
  Lock lock(stuck);
  bool over = false;
  play(plan, {[&] {
                for (int i = 0; i < 4; ++i) {
                  lock.take();
                  if (over) {
                    if (repaired) lock.give_back();
                    break;
                  }
                  lock.give_back();
                }
                stuck.ended();
              },
              [&] {
                do_something_else();
                lock.take();
                over = true;
                lock.give_back();
                do_something_else();
                lock.take();
                lock.give_back();
                stuck.ended();
              }});
  return stuck.is_stuck();
}

/// Says that data is there before it is.
inline bool early_publication(const schedule::Plan& plan, bool repaired) {
  bool there = false, wrong = false;
  int data = 0;
  play(plan, {[&] {
                do_something_else();
                if (repaired) data = 1;
                there = true;
                step();
                data = 1;
              },
              [&] {
                step();
                if (there) wrong = data != 1;
              }});
  return wrong;
}

/// Two threads read, add and write.
inline bool torn_addition(const schedule::Plan& plan, bool repaired) {
  int count = 0;
  const auto add = [&] {
    step();
    if (repaired) {
      ++count;
      step();
      return;
    }
    const int before = count;
    step();
    count = before + 1;
  };
  play_twice(plan, add);
  return count != 2;
}

/// A consumer that was woken takes without another look, and another one has been faster.
inline bool no_second_look(const schedule::Plan& plan, bool repaired) {
  Stuck stuck(3);
  Lock lock(stuck);
  Condition filled(stuck);
  int items = 0;
  bool closed = false, wrong = false;
  const auto consume = [&] {
    do_something_else();
    lock.take();
    if (items == 0 && !closed) filled.wait(lock);
    while (repaired && items == 0 && !closed && !stuck.is_stuck()) filled.wait(lock);
    if (!closed || items > 0) wrong |= --items < 0;
    lock.give_back();
    stuck.ended();
  };
  play(plan, {consume, consume, [&] {
                do_something_else();
                lock.take();
                ++items;
                filled.notify();
                lock.give_back();
                do_something_else();
                lock.take();
                closed = true;
                filled.notify();
                lock.give_back();
                stuck.ended();
              }});
  return wrong;
}

/// Two threads take two locks in different orders.
inline bool crossed_locks(const schedule::Plan& plan, bool repaired) {
  Stuck stuck(2);
  Lock one(stuck), other(stuck);
  const auto take_both = [&](Lock& first, Lock& second) {
    do_something_else();
    first.take();
    second.take();
    second.give_back();
    first.give_back();
    stuck.ended();
  };
  play(plan,
       {[&] { take_both(one, other); }, [&] { repaired ? take_both(one, other) : take_both(other, one); }});
  return stuck.is_stuck();
}

/// The last of two users frees: both, or none, find that they are the last.
inline bool two_last_users(const schedule::Plan& plan, bool repaired) {
  int users = 2, freed = 0;
  const auto leave = [&] {
    step();
    if (repaired) {
      if (--users == 0) ++freed;
      return;
    }
    --users;
    step();
    if (users == 0) ++freed;
  };
  play_twice(plan, leave);
  return freed != 1;
}

/// The thread that runs a queue looks a last time, and only then says that it runs it no more. Who puts
/// something on the queue in between leaves it to that thread.
inline bool token_after_the_last_look(const schedule::Plan& plan, bool repaired) {
  int queued = 0, run = 0;
  bool token = false;
  const auto run_all = [&] {
    do {
      if (token) return;
      token = true;
      while (queued > 0) {
        --queued;
        ++run;
        step();
      }
      if (!repaired) step();
      token = false;
    } while (repaired && queued > 0);
  };
  const auto put = [&] {
    step();
    ++queued;
    step();
    run_all();
  };
  play_twice(plan, put);
  return run != 2;
}

/// An event counts as reached before it has the failure of what came before, and a third thread reads the
/// result behind another stream that waited for it.
inline bool event_before_its_failure(const schedule::Plan& plan, bool repaired) {
  bool reached = false, failed = false, second_ran = false, second_failed = false, wrong = false;
  int ended = 0;
  play(plan, {[&] {
                do_something_else();
                if (repaired) failed = true;
                reached = true;
                step();
                failed = true;
                ++ended;
              },
              [&] {
                step();
                if (reached) {
                  second_failed = failed;
                  second_ran = true;
                }
                ++ended;
              },
              [&] {
                while (!second_ran && ended < 2) schedule::point(schedule::Point::poll);
                wrong = second_ran && !second_failed;
              }});
  return wrong;
}

/// A free list that compares the head only: meanwhile the same block was taken, another one too, and the
/// first one given back.
inline bool head_that_came_back(const schedule::Plan& plan, bool repaired) {
  constexpr int kNone = -1;
  std::array<int, 3> next = {1, 2, kNone};
  std::array<int, 3> users = {0, 0, 0};
  int head = 0, changes = 0;
  bool wrong = false;
  const auto take = [&] {
    for (;;) {
      const int found = head, behind = found == kNone ? kNone : next[static_cast<std::size_t>(found)];
      const int seen = changes;
      step();
      if (head != found || (repaired && changes != seen)) continue;
      head = behind;
      ++changes;
      if (found != kNone) wrong |= ++users[static_cast<std::size_t>(found)] > 1;
      return found;
    }
  };
  const auto give_back = [&](int block) {
    --users[static_cast<std::size_t>(block)];
    next[static_cast<std::size_t>(block)] = head;
    head = block;
    ++changes;
  };
  play(plan, {[&] {
                do_something_else();
                take();
                step();
                take();
              },
              [&] {
                do_something_else();
                const int first = take();
                step();
                take();
                step();
                if (first != kNone) give_back(first);
              }});
  return wrong;
}

struct Bug {
  const char* name;
  Program program;
};

inline constexpr std::array<Bug, 10> kAll = {{{"lost wake-up", &lost_wake_up},
                                              {"missed release", &missed_release},
                                              {"early publication", &early_publication},
                                              {"torn addition", &torn_addition},
                                              {"no second look", &no_second_look},
                                              {"crossed locks", &crossed_locks},
                                              {"two last users", &two_last_users},
                                              {"token after the last look", &token_after_the_last_look},
                                              {"event before its failure", &event_before_its_failure},
                                              {"head that came back", &head_that_came_back}}};

}  // namespace bugs
