#include "transport/deadlock_watch.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <set>
#include <system_error>
#include <thread>
#include <vector>

#include "base/fork.hpp"
#include "base/periods.hpp"
#include "base/signals.hpp"
#include "base/text.hpp"
#include "transport/shared/flags.hpp"
#include "transport/state/deadlock_state.hpp"
#include "transport/state/wait_description.hpp"
#include "transport/system/machine.hpp"

namespace vccl {
namespace {

// A meeting is announced before it has lasted. After this time it counts as a wait.
constexpr auto kShortMeeting = std::chrono::milliseconds(200);
// For how long the same waits have to stand before other hosts are told.
constexpr auto kFarLasting = std::chrono::milliseconds(500);

void add_to(WaitDescription& description, const ThreadWait& wait) {
  auto awaits = [&](int index) { return wait.awaits(index); };
  description.add_call(*wait.group, {wait.text, awaits, wait.far, wait.number, wait.is_meeting});
}

Token make_token() {
  Token token = 0;
  while (token == 0) std::memcpy(&token, random_bytes(sizeof token).data(), sizeof token);
  return token;
}

}  // namespace

DeadlockWatch::DeadlockWatch() : state_(std::make_unique<State>(make_token())) {}

DeadlockWatch& DeadlockWatch::of_this_process() {
  static base::OnePerProcess<DeadlockWatch> one;
  return one.get([](DeadlockWatch& own, const DeadlockWatch& parents) {
    own.state_->blocked_threads = parents.state_->blocked_threads;
  });
}

void DeadlockWatch::set_blocked_threads(BlockedThreads blocked_threads) {
  std::lock_guard lock(state_->mutex);
  state_->blocked_threads = std::make_shared<const BlockedThreads>(std::move(blocked_threads));
}

void DeadlockWatch::stop(Milliseconds patience) noexcept {
  std::unique_lock lock(state_->mutex);
  state_->stopped = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, patience, [this] { return !state_->running; });
  state_->exchange.end(patience);
}

void DeadlockWatch::add(const Group& group, FailureChannel& failures) {
  group.own_line().process.store(state_->token);
  std::lock_guard lock(state_->mutex);
  state_->communicators.push_back({&group, &failures, nullptr});
  if (state_->version > 0) group.own_line().waits.write(state_->version, state_->published);
}

void DeadlockWatch::remove(const Group& group) noexcept {
  std::lock_guard lock(state_->mutex);
  std::erase_if(state_->communicators, [&](const auto& known) { return known.group == &group; });
}

std::vector<std::string> DeadlockWatch::waits() const {
  std::lock_guard lock(state_->mutex);
  std::vector<std::string> texts;
  for (const ThreadWait& wait : state_->waits) {
    const HostGroup& host = wait.group->host;
    std::vector<int> ranks;
    for (int i = 0; i < static_cast<int>(host.ranks.size()); ++i)
      if (i != host.index && wait.awaits(i)) ranks.push_back(host.ranks[static_cast<std::size_t>(i)]);
    texts.push_back(base::text(wait.text, ", ",
                               !ranks.empty()            ? "for " + wait.group->names.ranks(ranks)
                               : wait.group->far.empty() ? "which every rank has begun"
                                                         : "which every rank of this host has begun"));
  }
  return texts;
}

std::uint64_t DeadlockWatch::token() const noexcept {
  return state_->token;
}

std::string DeadlockWatch::far_silence() const {
  std::lock_guard lock(state_->mutex);
  return state_->exchange.silence();
}

std::uint64_t DeadlockWatch::begin_wait(const Group& group, std::uint64_t sequence, const std::string& call,
                                        std::vector<int> far) {
  return state_->begin({.id = 0,
                        .group = &group,
                        .thread = pthread_self(),
                        .text = call,
                        .number = sequence,
                        .is_meeting = false,
                        .far = std::move(far),
                        .since = Clock::now() - kShortMeeting});
}

std::uint64_t DeadlockWatch::begin_meeting(const Group& group, const std::string& what) {
  const std::uint64_t number = group.own_line().meetings.fetch_add(1) + 1;
  return state_->begin({.id = 0,
                        .group = &group,
                        .thread = pthread_self(),
                        .text = what,
                        .number = number,
                        .is_meeting = true,
                        .far = far_ranks(group),
                        .since = Clock::now()});
}

void DeadlockWatch::end_wait(std::uint64_t id) noexcept {
  std::lock_guard lock(state_->mutex);
  std::erase_if(state_->waits, [&](const ThreadWait& wait) { return wait.id == id; });
  // What was proved stays true, whatever ended this wait first. Other members may depend on this process to
  // fail the communicators.
  if (state_->verdict) state_->carry_out();
  if (state_->waits.empty()) state_->changed.notify_all();
}

void DeadlockWatch::watch(const Group& group, WatchedMessages& messages) {
  std::lock_guard lock(state_->mutex);
  for (auto& known : state_->communicators)
    if (known.group == &group) known.messages = &messages;
  if (!state_->running && !state_->stopped) state_->start();
}

void DeadlockWatch::let_be(const Group& group) noexcept {
  std::lock_guard lock(state_->mutex);
  for (auto& known : state_->communicators)
    if (known.group == &group) known.messages = nullptr;
  state_->changed.notify_all();
}

std::uint64_t DeadlockWatch::State::begin(ThreadWait wait) {
  std::lock_guard lock(mutex);
  wait.id = next_id++;
  waits.push_back(std::move(wait));
  if (!running && !stopped) start();
  return waits.back().id;
}

/// The caller holds the lock. The thread is detached: it ends when no thread waits any more, and stop() waits
/// for it.
void DeadlockWatch::State::start() {
  base::SignalsBlocked blocked;
  try {
    std::thread([this] { run(); }).detach();
    running = true;
  } catch (const std::system_error&) {
    // The system has no thread to give: the waits end at their deadline.
  }
}

void DeadlockWatch::State::run() {
  pthread_setname_np(pthread_self(), "vccl deadlocks");
  std::unique_lock lock(mutex);
  const auto over = [this] { return (waits.empty() && !has_messages()) || stopped; };
  while (!changed.wait_for(lock, base::kWatchPeriod, over)) {
    lock.unlock();
    look();
    lock.lock();
  }
  if (version > 0 && published.count > 0) publish(PublishedWaits{});
  exchange.end();
  far.clear();
  ids.clear();
  candidate = {};
  in_circle = false;
  verdict.reset();
  running = false;
  changed.notify_all();
}

/// The caller holds the lock.
bool DeadlockWatch::State::has_messages() const {
  return std::ranges::any_of(communicators, [](const Known& known) { return known.messages != nullptr; });
}

/// Returns the messages that are under way, or nothing if some are moving. The caller holds the lock.
std::optional<std::vector<DeadlockWatch::State::PendingMessages>> DeadlockWatch::State::pending_messages()
    const {
  std::vector<PendingMessages> all;
  for (const Known& known : communicators) {
    if (!known.messages) continue;
    auto pending = known.messages->pending();
    if (!pending) return std::nullopt;
    if (!pending->empty()) all.push_back({known.group, std::move(*pending)});
  }
  return all;
}

/// The caller holds the lock.
std::vector<std::uint64_t> DeadlockWatch::State::ids_with(
    const std::vector<PendingMessages>& messages) const {
  std::vector<std::uint64_t> result;
  for (const ThreadWait& wait : waits) result.push_back(wait.id);
  for (const auto& [group, pending] : messages) {
    result.push_back(group->id);
    for (const auto& message : pending) result.push_back(message.number);
  }
  return result;
}

void DeadlockWatch::State::look() {
  std::vector<pthread_t> threads;
  std::vector<std::uint64_t> asked_with;
  std::shared_ptr<const BlockedThreads> ask;
  bool suspicious = false;
  {
    std::lock_guard lock(mutex);
    for (const ThreadWait& wait : waits) threads.push_back(wait.thread);
    // The question takes Python's lock, which a process with no circle in sight is spared.
    if (const auto messages = in_circle ? pending_messages() : std::nullopt) {
      asked_with = ids_with(*messages);
      suspicious = true;
    }
    ask = blocked_threads;
  }
  const auto answer = suspicious && ask && *ask ? (*ask)(threads) : std::nullopt;

  std::lock_guard lock(mutex);
  rounds = exchange.rounds();
  far = exchange.found();
  const auto messages = pending_messages();
  const auto now = ids_with(messages.value_or(std::vector<PendingMessages>()));
  bool complete = messages && now == asked_with && std::ranges::all_of(waits, [](const ThreadWait& wait) {
                    return Clock::now() - wait.since >= kShortMeeting;
                  });
  PublishedWaits waits_now = describe(messages.value_or(std::vector<PendingMessages>()), complete);
  const auto blocked_now = complete ? answer : std::nullopt;
  waits_now.blocked = blocked_now.has_value();
  if (version > 0 && waits_now == published && now == ids && blocked_now == blocked) {
    ++looks;
    for (const Known& known : communicators) known.group->own_line().waits.set_looks(looks);
  } else {
    publish(waits_now);
    if (now != ids) ids_since = Clock::now();
    ids = now;
    blocked = blocked_now;
  }
  judge();
}

/// Returns what processes on other hosts have to know of this one. The caller holds the lock.
WaitFacts DeadlockWatch::State::facts_now() const {
  WaitFacts now;
  for (const Known& known : communicators) {
    const Group& group = *known.group;
    if (group.far.empty()) continue;
    if (now.begun.size() < WaitFacts::kMost) {
      const RankLine& line = group.own_line();
      now.begun.push_back({group.id,
                           std::max(read(line.operations[0].sequence), read(line.operations[1].sequence)),
                           read(line.meetings)});
    }
    for (const auto& [rank, process] : group.far) {
      const std::uint64_t sent = group.traffic->sent(rank);
      if (sent == 0) continue;
      now.lists_all_sent = now.sent.size() < WaitFacts::kMost;
      if (!now.lists_all_sent) break;
      now.sent.push_back({group.id, process, sent});
    }
  }
  return now;
}

/// Lets other hosts know of this process, and asks for what is `unknown` of them. The caller holds the lock.
void DeadlockWatch::State::exchange_with_other_hosts(const std::vector<Token>& unknown) {
  const bool urgent = in_circle || verdict;
  if (!urgent && Clock::now() - ids_since < kFarLasting) return;
  const auto known = std::ranges::find_if(communicators, [](const Known& entry) {
    return !!entry.group->connect_store && !entry.group->far.empty();
  });
  if (known == communicators.end()) return;
  WaitExchange::Turn turn;
  turn.token = token;
  turn.own.copy = {version, looks, verdict.has_value(), 0, published};
  turn.own.facts = facts;
  std::set<Token> wanted(asked.begin(), asked.end());
  wanted.insert(unknown.begin(), unknown.end());
  turn.wanted.assign(wanted.begin(), wanted.end());
  turn.urgent = urgent;
  exchange.turn(known->group->connect_store, std::move(turn));
}

/// Sets `complete` to false if not everything fits. The caller holds the lock.
PublishedWaits DeadlockWatch::State::describe(const std::vector<PendingMessages>& messages, bool& complete) {
  WaitDescription description(token, far);
  auto now = facts_now();
  if (now != facts) {
    facts = std::move(now);
    ++state;
  }
  if (!communicators.empty()) {
    const Group& first = *communicators.front().group;
    description.set_process(first.names.in_job(first.rank), state);
  }
  for (const ThreadWait& wait : waits) add_to(description, wait);
  for (const auto& [group, pending] : messages) description.add_messages(*group, pending);
  complete = complete && description.complete();
  asked = description.asked();
  return description.result();
}

/// The caller holds the lock.
void DeadlockWatch::State::publish(const PublishedWaits& waits_now) {
  version += 2;
  looks = 0;
  published = waits_now;
  for (const Known& known : communicators) known.group->own_line().waits.write(version, published);
}

}  // namespace vccl
