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
#include "transport/state/failure_channel.hpp"
#include "transport/state/group.hpp"
#include "transport/state/wait_circle.hpp"
#include "transport/state/wait_description.hpp"
#include "transport/system/machine.hpp"

namespace vccl {
namespace {

// A meeting is announced before it has lasted. After this time it counts as a wait.
constexpr auto kShortMeeting = std::chrono::milliseconds(200);
// How many looks a member that has concluded waits for the others to conclude. They conclude at about the
// same time, unless the machine gives one of them no time.
constexpr int kPatience = 50;
// After how many looks a circle that cannot be proved is worth a warning.
constexpr std::uint64_t kDoubtful = 20;

struct Wait {
  std::uint64_t id;
  const Group* group;
  pthread_t thread;
  std::string text;
  std::uint64_t number;  // of the operation, or of the meeting
  bool is_meeting;
  Clock::time_point since;

  /// Returns whether the rank at `index` of the group's host has not come to this operation or meeting.
  bool awaits(int index) const {
    const RankLine& line = group->host.line(index);
    if (is_meeting) return read(line.meetings) < number;
    return read(line.operations[number & 1].sequence) != number;
  }
};

void add_to(WaitDescription& description, const Wait& wait) {
  auto awaits = [&](int index) { return wait.awaits(index); };
  description.add_call(*wait.group, wait.text, awaits);
}

Token make_token() {
  Token token = 0;
  while (token == 0) std::memcpy(&token, random_bytes(sizeof token).data(), sizeof token);
  return token;
}

}  // namespace

struct DeadlockWatch::State {
  /// A communicator that was added.
  struct Known {
    const Group* group;
    FailureChannel* failures;
    WatchedMessages* messages = nullptr;  // if some have been under way for a while
  };
  struct PendingMessages {
    const Group* group;
    std::vector<WatchedMessages::Pending> messages;
  };

  const Token token = make_token();

  std::mutex mutex;  // guards everything below; not held while blocked_threads is called
  std::condition_variable changed;
  std::shared_ptr<const BlockedThreads> blocked_threads;
  std::vector<Known> communicators;  // in the order in which they were made
  std::vector<Wait> waits;
  std::uint64_t next_id = 1;
  bool running = false, stopped = false;

  // The next members are what is published, and for how long it has held.
  std::uint64_t version = 0, looks = 0;
  PublishedWaits published{};
  std::vector<std::uint64_t> ids;  // of the waits and of the messages
  bool in_circle = false;          // whether this process was part of a circle of waits at the last look
  std::optional<std::uint64_t> blocked;

  HeldVersions candidate, doubtful;  // what may turn out to be a deadlock
  std::uint64_t warned = 0;          // the version for which a warning was written

  struct Verdict {
    std::string text;
    std::set<std::uint64_t> communicators;
    std::map<Token, std::uint64_t> versions;  // of the members
    int looks = 0;                            // looks since the verdict
  };
  std::optional<Verdict> verdict;

  std::uint64_t begin(Wait wait);
  void start();
  void run();
  void look();
  bool has_messages() const;
  std::optional<std::vector<PendingMessages>> pending_messages() const;
  std::vector<std::uint64_t> ids_with(const std::vector<PendingMessages>& messages) const;
  PublishedWaits describe(const std::vector<PendingMessages>& messages, bool& complete) const;
  void publish(const PublishedWaits& waits);
  using TokenLine = std::pair<Token, const RankLine*>;
  std::vector<TokenLine> lines_by_token() const;
  Records read_records() const;
  void judge();
  void warn_once(const std::set<Token>& members, const Records& records);
  bool all_members_know(const Records& records);
  void carry_out();
};

DeadlockWatch::DeadlockWatch() : state_(std::make_unique<State>()) {}

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
  for (const Wait& wait : state_->waits) {
    const HostGroup& host = wait.group->host;
    std::vector<int> ranks;
    for (int i = 0; i < static_cast<int>(host.ranks.size()); ++i)
      if (i != host.index && wait.awaits(i)) ranks.push_back(host.ranks[static_cast<std::size_t>(i)]);
    texts.push_back(
        base::text(wait.text, ", ",
                   ranks.empty() ? "which every rank has begun" : "for " + wait.group->names.ranks(ranks)));
  }
  return texts;
}

std::uint64_t DeadlockWatch::begin_wait(const Group& group, std::uint64_t sequence, const std::string& call) {
  return state_->begin({.id = 0,
                        .group = &group,
                        .thread = pthread_self(),
                        .text = call,
                        .number = sequence,
                        .is_meeting = false,
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
                        .since = Clock::now()});
}

void DeadlockWatch::end_wait(std::uint64_t id) noexcept {
  std::lock_guard lock(state_->mutex);
  std::erase_if(state_->waits, [&](const Wait& wait) { return wait.id == id; });
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

std::uint64_t DeadlockWatch::State::begin(Wait wait) {
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
  for (const Wait& wait : waits) result.push_back(wait.id);
  for (const auto& [group, pending] : messages) {
    result.push_back(id_of_communicator(*group));
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
    for (const Wait& wait : waits) threads.push_back(wait.thread);
    // The question takes Python's lock, which a process with no circle in sight is spared.
    if (const auto messages = in_circle ? pending_messages() : std::nullopt) {
      asked_with = ids_with(*messages);
      suspicious = true;
    }
    ask = blocked_threads;
  }
  const auto answer = suspicious && ask && *ask ? (*ask)(threads) : std::nullopt;

  std::lock_guard lock(mutex);
  const auto messages = pending_messages();
  const auto now = ids_with(messages.value_or(std::vector<PendingMessages>()));
  bool complete = messages && now == asked_with && std::ranges::all_of(waits, [](const Wait& wait) {
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
    ids = now;
    blocked = blocked_now;
  }
  judge();
}

/// Sets `complete` to false if not everything fits. The caller holds the lock.
PublishedWaits DeadlockWatch::State::describe(const std::vector<PendingMessages>& messages,
                                              bool& complete) const {
  WaitDescription description;
  if (!communicators.empty()) {
    const Group& first = *communicators.front().group;
    description.set_rank(first.names.in_job(first.rank));
  }
  for (const Wait& wait : waits) add_to(description, wait);
  for (const auto& [group, pending] : messages) description.add_messages(*group, pending);
  complete = complete && description.complete();
  return description.result();
}

/// The caller holds the lock.
void DeadlockWatch::State::publish(const PublishedWaits& waits_now) {
  version += 2;
  looks = 0;
  published = waits_now;
  for (const Known& known : communicators) known.group->own_line().waits.write(version, published);
}

/// Returns this process's record, those of the processes that it waits for, directly or not, and those of the
/// members of the verdict. The others cannot be in one circle with this process, and to read them all would
/// cost each rank of a large group more than its turn. The caller holds the lock.
Records DeadlockWatch::State::read_records() const {
  Records records;
  records[token] = {version, looks, verdict.has_value(), published};
  std::vector<Token> left;
  const auto add_awaited = [&left](const PublishedWaits& waits) {
    for (std::uint32_t i = 0; i < waits.count; ++i) {
      const auto& awaited = waits.waits[i].awaited;
      left.insert(left.end(), awaited.begin(), awaited.begin() + waits.waits[i].awaited_count);
    }
  };
  add_awaited(published);
  if (verdict)
    for (const auto& member : verdict->versions) left.push_back(member.first);
  if (left.empty()) return records;
  const auto lines = lines_by_token();
  while (!left.empty()) {
    const Token other = left.back();
    left.pop_back();
    if (other == 0 || records.contains(other)) continue;
    const auto line = std::ranges::lower_bound(lines, other, {}, &TokenLine::first);
    if (line == lines.end() || line->first != other) continue;
    const auto record = line->second->waits.read();
    if (record.version == 0) continue;
    add_awaited(record.waits);
    records[other] = record;
  }
  return records;
}

/// Returns a line of each process that shares a communicator with this one, by token. The caller holds the
/// lock.
std::vector<DeadlockWatch::State::TokenLine> DeadlockWatch::State::lines_by_token() const {
  std::vector<TokenLine> lines;
  for (const Known& known : communicators) {
    const HostGroup& host = known.group->host;
    for (int i = 0; i < static_cast<int>(host.ranks.size()); ++i)
      lines.emplace_back(read(host.line(i).process), &host.line(i));
  }
  // A process's lines have the same record.
  std::ranges::sort(lines, {}, &TokenLine::first);
  return lines;
}

/// The caller holds the lock.
void DeadlockWatch::State::judge() {
  const Records records = read_records();
  const auto circle = awaited_from(token, waiting_for_each_other(records, false), records);
  in_circle = !circle.empty();
  if (verdict) {
    if (all_members_know(records)) carry_out();
    return;
  }
  const auto members = awaited_from(token, waiting_for_each_other(records, true), records);
  if (!candidate.have_held(members, records, 2)) return warn_once(circle, records);
  verdict.emplace();
  verdict->text = base::text(
      "the ranks wait for each other in different calls, and none of them can go on: ",
      calls_text(members, records),
      ". Every rank must call the collectives of all its groups, on the CPU and on cards, in the "
      "same order, and each send needs a receive with its tag that the peer comes to before it waits "
      "for something else (batch_isend_irecv starts several at once).");
  for (const Token member : members) {
    verdict->versions[member] = records.at(member).version;
    const PublishedWaits& waits_of = records.at(member).waits;
    for (std::uint32_t i = 0; i < waits_of.count; ++i)
      verdict->communicators.insert(waits_of.waits[i].communicator);
  }
  for (const Known& known : communicators) known.group->own_line().waits.set_concluded(true);
}

/// Warns once about a circle that another thread of a member might still end. Messages alone are no reason:
/// ranks may well post receives and compute. The caller holds the lock.
void DeadlockWatch::State::warn_once(const std::set<Token>& members, const Records& records) {
  if (waits.empty() || !doubtful.have_held(members, records, kDoubtful) || warned == version) return;
  warned = version;
  const std::string text =
      base::text("the ranks wait for each other in different calls: ", calls_text(members, records),
                 ". They will wait until the timeout, unless another of their threads brings an end.");
  communicators.front().group->log.warn(text);
}

/// Returns whether all members have concluded the deadlock, or have had enough time to. The caller holds the
/// lock.
bool DeadlockWatch::State::all_members_know(const Records& records) {
  // A member whose record has changed has already failed the communicators, or its process has ended.
  const auto& versions = verdict->versions;
  const bool all_know = std::all_of(versions.begin(), versions.end(), [&](const auto& member) {
    const auto found = records.find(member.first);
    return found == records.end() || found->second.version != member.second || found->second.concluded;
  });
  return all_know || ++verdict->looks >= kPatience;
}

/// The caller holds the lock.
void DeadlockWatch::State::carry_out() {
  for (const Known& known : communicators) {
    if (verdict->communicators.contains(id_of_communicator(*known.group)))
      known.failures->fail(ErrorCode::mismatch, verdict->text);
  }
  verdict.reset();
}

}  // namespace vccl
