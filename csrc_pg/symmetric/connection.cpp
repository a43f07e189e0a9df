#include "csrc_pg/symmetric/connection.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "base/cores.hpp"
#include "base/futex.hpp"
#include "base/periods.hpp"
#include "base/schedule.hpp"
#include "base/spinning.hpp"
#include "base/text.hpp"
#include "base/thread_waits.hpp"
#include "transport/earlier.hpp"
#include "transport/explanation.hpp"
#include "transport/interruption_check.hpp"
#include "transport/variables.hpp"

namespace vccl::symmetric {
namespace {

// How long a wait sleeps at most. Ranks wake each other, but nobody wakes a sleeper when a kernel of the
// program has written to a pad.
constexpr std::chrono::milliseconds kLongestSleep{10};

std::string signal_text(const char* what, int channel) {
  return base::text(what, " (channel ", channel, ")");
}

}  // namespace

Connection::Connection(Members members, std::vector<Peer> peers, std::size_t buffer_bytes,
                       std::size_t pad_bytes, std::string text)
    : members_(std::move(members)),
      peers_(std::move(peers)),
      buffer_bytes_(buffer_bytes),
      pad_bytes_(pad_bytes),
      text_(std::move(text)),
      warn_after_(read_variables().warn_after),
      oversubscribed_(members_.size > base::UsableCores::of_this_process().count()) {}

Connection::~Connection() {
  auto& own = peers_[static_cast<std::size_t>(members_.rank)].header();
  own.closed.store(1, std::memory_order_release);
}

int Connection::channels() const {
  return static_cast<int>(pad_bytes_ / sizeof(Word) / static_cast<std::size_t>(members_.size));
}

bool Connection::is_closed(int rank) const {
  return peers_[static_cast<std::size_t>(rank)].header().closed.load(std::memory_order_acquire) != 0;
}

bool Connection::is_signalled(int from, int channel) const {
  return word(members_.rank, channel, from).load(std::memory_order_acquire) != 0;
}

Word& Connection::word(int owner, int channel, int sender) const {
  auto* words = reinterpret_cast<Word*>(peers_[static_cast<std::size_t>(owner)].words());
  return words[channel * members_.size + sender];
}

void Connection::wake(int owner, Word& word) const {
  // Pairs with the fence in sleep_until(): either this thread sees the sleeper, or the sleeper sees the word.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (peers_[static_cast<std::size_t>(owner)].header().sleepers.load(std::memory_order_relaxed) != 0)
    base::futex_wake(word);
}

void Connection::put_signal(int to, int channel, const Deadline& deadline) {
  Word& signal = word(to, channel, members_.rank);
  await(
      signal, [](std::uint32_t seen) { return seen == 0; }, to, to,
      signal_text("to take its last signal with wait_signal", channel), deadline);
  signal.store(1, std::memory_order_release);
  wake(to, signal);
}

void Connection::wait_signal(int from, int channel, const Deadline& deadline) {
  Word& signal = word(members_.rank, channel, from);
  await(
      signal, [](std::uint32_t seen) { return seen == 1; }, from, members_.rank,
      signal_text("to signal it with put_signal", channel), deadline);
  signal.store(0, std::memory_order_release);
  wake(members_.rank, signal);
}

void Connection::barrier(int channel, const Deadline& deadline) {
  const auto what = [&] { return signal_text("to come to the barrier", channel); };
  for (int step = 1; step < members_.size; ++step) {
    const int to = (members_.rank + step) % members_.size;
    Word& signal = word(to, channel, members_.rank);
    if (signal.load(std::memory_order_acquire) != 0)
      await(signal, [](std::uint32_t seen) { return seen == 0; }, to, to, what(), deadline);
    signal.store(1, std::memory_order_release);
    wake(to, signal);
  }
  for (int step = 1; step < members_.size; ++step) {
    const int from = (members_.rank + step) % members_.size;
    Word& signal = word(members_.rank, channel, from);
    if (signal.load(std::memory_order_acquire) != 1)
      await(signal, [](std::uint32_t seen) { return seen == 1; }, from, members_.rank, what(), deadline);
    signal.store(0, std::memory_order_release);
    wake(members_.rank, signal);
  }
}

Error Connection::fail(ErrorCode code, const std::string& what) const {
  Error error(code, base::text(what, " [", text_, "]"));
  if (const auto communicator = members_.communicator.lock()) communicator->fail(error.code(), error.what());
  return error;
}

Error Connection::fail_unrun(const std::string& what, const std::string& why) const {
  return fail(ErrorCode::aborted, base::text(members_.names.of_group(members_.rank), " did not run its ",
                                             what, ": ", why, ". The group has to be made anew."));
}

bool Connection::sleep_until(Word& word, int owner, const Ready& ready, Clock::time_point end) {
  const auto left = std::min<Clock::duration>(end - Clock::now(), kLongestSleep);
  if (left.count() <= 0) return ready(word.load(std::memory_order_acquire));
  const std::uint32_t seen = word.load(std::memory_order_acquire);
  if (ready(seen)) return true;
  if (owner < 0) {
    base::futex_wait(word, seen, left);
    return ready(word.load(std::memory_order_acquire));
  }
  auto& sleepers = peers_[static_cast<std::size_t>(owner)].header().sleepers;
  sleepers.fetch_add(1);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const std::uint32_t now = word.load(std::memory_order_acquire);
  if (!ready(now)) base::futex_wait(word, now, left);
  sleepers.fetch_sub(1);
  return ready(word.load(std::memory_order_acquire));
}

void Connection::check_peer(Word& word, const Ready& ready, int peer, const std::string& what) const {
  const auto communicator = members_.communicator.lock();
  const auto& names = members_.names;
  const auto us = names.of_group(members_.rank);
  if (!communicator)
    throw Error(ErrorCode::aborted, base::text(us, " waited for ", names.rank(peer), " ", what,
                                               ", and the group was destroyed meanwhile [", text_, "]"));
  communicator->check();
  const auto end = communicator->end_of(peer);
  const bool closed = is_closed(peer);
  if (!end && !closed) return;
  // Everything that the peer did, it did before. What is missing now will stay missing.
  if (ready(word.load(std::memory_order_acquire))) return;
  const auto tail = base::text(" while ", us, " waited for it ", what);
  if (closed)
    throw fail(ErrorCode::peer_left,
               base::text(names.rank(peer), " has freed its symmetric memory", tail,
                          ". Keep the tensor, or its handle, until all ranks have done with it"));
  const auto code = end->how == RankEnd::How::left ? ErrorCode::peer_left : ErrorCode::peer_dead;
  throw fail(code, base::text(end->text(names, peer), tail));
}

void Connection::warn(std::chrono::nanoseconds waited, int peer, const std::string& what) const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(waited).count();
  const auto line = base::text("[vccl] ", members_.names.of_group(members_.rank), " has waited ", seconds,
                               " s for ", members_.names.rank(peer), " ", what, ", and goes on waiting [",
                               text_, "].", explanation(waited), "\n");
  std::fputs(line.c_str(), stderr);
}

void Connection::wait(Word& word, int owner, const Ready& ready, int peer, const std::string& what,
                      const Deadline& deadline) {
  const base::schedule::Outside elsewhere;
  const auto is_ready = [&] { return ready(word.load(std::memory_order_acquire)); };
  const auto spinning = base::spinning_for_rank(oversubscribed_);
  for (int looks = spinning.looks; looks > 0; --looks) {
    if (is_ready()) return;
    base::cpu_pause();
  }
  const base::ThreadWaits waits;
  const auto begin = Clock::now();
  while (Clock::now() - begin < spinning.patience) {
    sched_yield();
    if (is_ready()) return;
  }
  auto next_look = begin;
  WaitWarning warning(begin, deadline, warn_after_);
  while (true) {
    const auto now = Clock::now();
    if (now >= next_look) {
      next_look = now + base::kLivenessPeriod;
      check_peer(word, ready, peer, what);
      if (warning.due(now)) warn(now - begin, peer, what);
      const auto by = interruption();
      if (!by.empty())
        throw fail(ErrorCode::aborted,
                   base::text(members_.names.of_group(members_.rank), " was interrupted by ", by,
                              " while it waited for ", members_.names.rank(peer), " ", what));
    }
    if (now >= deadline.at && !is_ready())
      throw fail(
          ErrorCode::timeout,
          base::text(members_.names.of_group(members_.rank), " waited ", deadline.length.count(), " ms for ",
                     members_.names.rank(peer), " ", what,
                     ". Look for a rank that is stuck, slow or in another call, or raise the timeout"));
    if (sleep_until(word, owner, ready, std::min(deadline.at, next_look))) return;
  }
}

}  // namespace vccl::symmetric
