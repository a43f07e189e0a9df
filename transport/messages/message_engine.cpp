#include "transport/messages/message_engine.hpp"

#include <algorithm>
#include <cstring>

#include "base/schedule.hpp"
#include "base/text.hpp"
#include "transport/explanation.hpp"
#include "transport/shared/taken_back.hpp"
#include "transport/state/wait_description.hpp"
#include "transport/support/error_text.hpp"

namespace vccl {
namespace {

// How many rounds a call works before it leaves the rest to the thread. This bounds what a call copies.
constexpr int kRoundsOfCall = 4;

// The engine whose callbacks this thread runs. A call from a callback only goes to the intake, because the
// thread that runs the callbacks looks there next. So a long chain of callbacks does not pile up on the
// stack.
thread_local const void* calling_back = nullptr;

}  // namespace

MessageEngine::MessageEngine(const Group& group, FailureChannel& failures, const AddedRegions& added,
                             MessagePort* remote)
    : group_(group),
      failures_(failures),
      mapped_(group, failures, added),
      begun_(group),
      remote_(remote),
      line_(group.host.messages().line(static_cast<std::size_t>(group.host.index))) {
  if (!remote_) return;
  remote_->start([this] { wake_messages(line_, true); });
  // What other hosts send, such as a failure, is read even if no call is under way.
  std::lock_guard lock(mutex_);
  start_thread();
}

MessageEngine::~MessageEngine() {
  {
    std::lock_guard lock(mutex_);
    over_ = true;
  }
  wake_messages(line_, true);
  if (thread_.joinable()) {
    const base::schedule::Outside elsewhere;  // the thread needs the turn to end
    thread_.join();
  }
  do {
    std::unique_lock lock(mutex_);
    begin_calls();
    if (!stopped_) {
      stop(Error(ErrorCode::aborted,
                 base::text(group_.own_text(), " left group ", group_.name, " with ", sends_.size(),
                            " sends and ", receives_.size(), " receives under way")));
    }
    call_back(std::move(lock));
  } while (has_intake());
}

void MessageEngine::send(int to, MessageTag tag, const Signature& signature, std::span<const std::byte> bytes,
                         const Deadline& deadline, Done done, std::shared_ptr<Waiter> waiter) {
  enter(Send{to, tag, signature, bytes, deadline, std::move(done), std::move(waiter)});
}

void MessageEngine::receive(int from, MessageTag tag, const Signature& signature, std::span<std::byte> bytes,
                            const Deadline& deadline, Done done) {
  enter(Receive{from, tag, signature, bytes, deadline, std::move(done)});
}

void MessageEngine::enter(SendOrReceive call) {
  if (made_.inherited()) {
    // The engine's mutexes may be held by threads that the child does not have.
    const Error error(ErrorCode::invalid,
                      base::text("group ", group_.name, " belongs to the process that forked"));
    std::visit([&](auto& made) { made.done(-1, &error); }, call);
    return;
  }
  base::schedule::point(base::schedule::Point::message);
  {
    std::lock_guard lock(intake_mutex_);
    intake_.push_back(std::move(call));
  }
  drive();
}

bool MessageEngine::has_intake() {
  std::lock_guard lock(intake_mutex_);
  return !intake_.empty();
}

void MessageEngine::drive() {
  if (calling_back == this) return;
  for (int i = 0;; ++i) {
    std::unique_lock lock(mutex_, std::try_to_lock);
    // The holder looks at the intake after it has released the mutex. If it looked before this call was in
    // the intake, it had released the mutex even earlier (the intake's mutex orders the two), and this thread
    // would have got the mutex.
    if (!lock) return;
    const Round last = round(std::move(lock));
    if (has_intake() || (last.moved && i < kRoundsOfCall)) continue;
    if (leave_to_thread(last)) return;
  }
}

/// Leaves what is under way to the thread, if that is possible. Returns false if the call has to look once
/// more.
bool MessageEngine::leave_to_thread(const Round& last) {
  if (!last.under_way) return true;
  std::uint32_t state = line_.sleep.load();
  if (last.moved || state == MessageLine::idle) {
    wake_messages(line_, true);
    return true;
  }
  // A dozing thread sleeps on, but from now on peers wake it. Another look sees what they did before they
  // could know that.
  return state != MessageLine::dozing || !line_.sleep.compare_exchange_strong(state, MessageLine::waiting);
}

MessageEngine::Round MessageEngine::round(std::unique_lock<std::mutex> lock) {
  Round result;
  result.moved = step();
  result.under_way = under_way();
  result.over = over_;
  if (result.under_way && !over_ && !thread_.joinable()) start_thread();
  call_back(std::move(lock));
  return result;
}

void MessageEngine::call_back(std::unique_lock<std::mutex> lock) {
  std::vector<Finished> finished;
  finished.swap(finished_);
  lock.unlock();
  if (finished.empty()) return;
  const void* before = std::exchange(calling_back, this);
  for (Finished& entry : finished) {
    entry.done(entry.source, entry.error.get());
    entry.done = nullptr;  // frees what the callback kept alive before the next one is called
  }
  calling_back = before;
}

/// Runs the step, and fails the group with what it throws. The engine's thread must not end by an exception,
/// and the operations that are under way end with the failure.
template <class Step>
void MessageEngine::guarded(Step step) {
  try {
    step();
  } catch (const Error& error) {
    failures_.fail(error.code(), error.what());
  } catch (const std::exception& error) {
    failures_.fail(ErrorCode::system,
                   base::text(group_.own_text(), " could not go on with its messages in group ", group_.name,
                              ": ", error.what()));
  }
}

/// Moves messages between this rank and its peers. Returns whether something has moved.
bool MessageEngine::move_on() {
  bool moved = false;
  guarded([&] {
    moved |= mapped_.progress(*this);
    if (remote_) moved |= remote_->progress(*this);
  });
  return moved;
}

bool MessageEngine::step() {
  // The failure is checked on both sides of begin_calls(), because a call made after a failure must not
  // succeed.
  const auto look_for_failure = [this] {
    if (!stopped_ && failures_.happened()) stop(failures_.error());
  };
  look_for_failure();
  bool moved = begin_calls();
  if (stopped_) return moved;
  moved |= move_on();
  look_at_deadlines();
  look_for_failure();
  return moved;
}

bool MessageEngine::begin_calls() {
  std::vector<SendOrReceive> calls;
  {
    std::lock_guard lock(intake_mutex_);
    calls.swap(intake_);
  }
  for (SendOrReceive& call : calls) {
    guarded([&] { std::visit([this](auto& made) { begin(made); }, call); });
  }
  return !calls.empty();
}

void MessageEngine::finish_refused(Done& done, const Error& error) {
  finished_.push_back({std::move(done), -1, std::make_shared<Error>(error)});
}

MessagePort* MessageEngine::port_to(int rank) {
  const auto& local = group_.host.ranks;
  return std::binary_search(local.begin(), local.end(), rank) ? &mapped_ : remote_;
}

void MessageEngine::begin(Send& send) {
  if (stopped_) {
    finished_.push_back({std::move(send.done), -1, stopped_});
    return;
  }
  if (send.to < 0 || send.to >= group_.size) {
    finish_refused(send.done,
                   Error(ErrorCode::invalid,
                         base::text(group_.own_text(), " sends to ", group_.rank_text(send.to), " of group ",
                                    group_.name, ", which has ", group_.size, " ranks")));
    return;
  }
  MessagePort* port = port_to(send.to);
  const std::uint64_t number = ++last_number_;
  next_deadline_ = std::min(next_deadline_, send.deadline.at);
  const Send& kept = sends_.emplace(number, std::move(send)).first->second;
  sends_to_itself_ |= kept.to == group_.rank;
  look_for_lost(kept);
  port->watch(kept.to);
  port->send(kept.to, {kept.tag, kept.signature, kept.bytes.size(), number}, kept.bytes);
}

void MessageEngine::begin(Receive& receive) {
  if (stopped_) {
    finished_.push_back({std::move(receive.done), -1, stopped_});
    return;
  }
  if (receive.from != kAnySource && (receive.from < 0 || receive.from >= group_.size)) {
    finish_refused(receive.done,
                   Error(ErrorCode::invalid,
                         base::text(group_.own_text(), " receives from ", group_.rank_text(receive.from),
                                    " of group ", group_.name, ", which has ", group_.size, " ranks")));
    return;
  }
  const std::uint64_t number = ++last_number_;
  next_deadline_ = std::min(next_deadline_, receive.deadline.at);
  const Receive& kept = receives_.emplace(number, std::move(receive)).first->second;
  begun_.count_receive(kept.from, kept.tag);
  if (std::optional<Arrival> arrival = matching_.find_arrival(kept.from, kept.tag)) {
    std::optional<std::span<const std::byte>> payload;
    if (arrival->complete) payload = arrival->payload;
    deliver(number, arrival->source, arrival->envelope, payload);
    return;
  }
  matching_.add_receive(number, kept.from, kept.tag);
  look_for_lost(kept);
  if (kept.from != kAnySource) {
    port_to(kept.from)->watch(kept.from);
  } else {
    for (int rank = 0; rank < group_.size; ++rank) port_to(rank)->watch(rank);
  }
}

void MessageEngine::offered(int source, const Envelope& envelope,
                            std::optional<std::span<const std::byte>> payload) {
  if (const auto number = matching_.find_receive(source, envelope.tag)) {
    deliver(*number, source, envelope, payload);
    return;
  }
  Arrival arrival{source, envelope, payload.has_value(), {}};
  if (payload) arrival.payload.assign(payload->begin(), payload->end());
  matching_.add_arrival(std::move(arrival));
}

void MessageEngine::deliver(std::uint64_t number, int source, const Envelope& envelope,
                            std::optional<std::span<const std::byte>> payload) {
  port_to(source)->matched(source, payload ? payload->size() : 0);
  const auto found = receives_.find(number);
  Receive& receive = found->second;
  if (receive.signature != envelope.signature || receive.memory.size() != envelope.bytes) {
    const auto side = [&](const Signature& signature, std::size_t bytes) {
      return base::text(group_.describe_signature(signature), " of ", bytes, " bytes");
    };
    failures_.fail(
        ErrorCode::mismatch,
        base::text(group_.rank_text(source), " sent ", side(envelope.signature, envelope.bytes), " to ",
                   group_.own_text(), " with ", envelope.tag.text(), " in group ", group_.name, ", but ",
                   group_.own_text(), " received ", side(receive.signature, receive.memory.size()), " from ",
                   receive.from == kAnySource ? "any source" : "it",
                   ". Both sides of a message must name the same dtype and number of elements."));
    return;  // the receive ends with all other calls
  }
  if (!payload) {
    receive.source = source;
    // The sender, which still has the bytes, may have gone since it offered the message.
    look_for_lost(receive);
    taking_[{source, envelope.id}] = number;
    port_to(source)->watch(source);
    port_to(source)->take(source, envelope.id, receive.memory);
    return;
  }
  if (!payload->empty()) std::memcpy(receive.memory.data(), payload->data(), payload->size());
  finished_.push_back({std::move(receive.done), source, nullptr});
  receives_.erase(found);
}

void MessageEngine::sent(std::uint64_t id) {
  const auto found = sends_.find(id);
  finished_.push_back({std::move(found->second.done), group_.rank, nullptr});
  sends_.erase(found);
}

void MessageEngine::taken(int source, std::uint64_t id) {
  const auto number = taking_.find({source, id});
  const auto found = receives_.find(number->second);
  finished_.push_back({std::move(found->second.done), source, nullptr});
  receives_.erase(found);
  taking_.erase(number);
}

void MessageEngine::lost(int rank, ErrorCode code, const std::string& how) {
  lost_[rank] = {code, how};
  for (const auto& [number, send] : sends_) {
    if (send.is_awaited()) {
      look_for_lost(send);
    } else if (send.to == rank) {
      finished_.push_back(
          {[waiter = send.waiter](int, const Error*) { waiter->receiver_is_gone(); }, -1, nullptr});
    }
  }
  for (const auto& [number, receive] : receives_) look_for_lost(receive);
}

const MessageEngine::Loss* MessageEngine::loss_of(int rank) const {
  const auto found = lost_.find(rank);
  return found == lost_.end() ? nullptr : &found->second;
}

const MessageEngine::Loss* MessageEngine::loss_of_all() const {
  const Loss* last = nullptr;
  for (int rank = 0; rank < group_.size; ++rank) {
    if (rank == group_.rank) {
      if (sends_to_itself_) return nullptr;
      continue;
    }
    last = loss_of(rank);
    if (!last) return nullptr;
  }
  return last;
}

void MessageEngine::look_for_lost(const Send& send) {
  if (const Loss* loss = loss_of(send.to)) {
    failures_.fail_for_end(loss->code,
                           base::text(loss->how, " while ", group_.own_text(), " ", text_of(send)));
  }
}

void MessageEngine::look_for_lost(const Receive& receive) {
  const int source = receive.from == kAnySource ? receive.source : receive.from;
  if (const Loss* loss = source == kAnySource ? loss_of_all() : loss_of(source)) {
    failures_.fail_for_end(loss->code,
                           base::text(loss->how, " while ", group_.own_text(), " ", text_of(receive)));
  }
}

void MessageEngine::look_at_deadlines() {
  const auto now = Clock::now();
  if (now < next_deadline_) return;
  next_deadline_ = Clock::time_point::max();
  const auto look = [&](const auto& operation, int peer, const std::string& hint) {
    next_deadline_ = std::min(next_deadline_, operation.deadline.at);
    if (now < operation.deadline.at || failures_.happened()) return;
    std::string text = text_of(operation);
    text.insert(std::strlen("waited"), base::text(" ", duration_text(operation.deadline.length)));
    text += hint;
    const auto found = std::ranges::find(group_.host.ranks, peer);
    if (found != group_.host.ranks.end())
      text += base::text("; ", waits_text(group_, static_cast<int>(found - group_.host.ranks.begin())));
    failures_.fail(ErrorCode::timeout,
                   base::text(group_.own_text(), " ", text,
                              ". Look for a rank that is stuck or slow, or for a tag or a "
                              "batch that only one side uses; or raise the timeout.",
                              explanation(operation.deadline.length)));
  };
  for (const auto& [number, receive] : receives_) look(receive, receive.from, unreceived_text(receive));
  for (const auto& [number, send] : sends_)
    if (send.is_awaited()) look(send, send.to, "");
}

void MessageEngine::stop(const Error& error) {
  stopped_ = std::make_shared<Error>(error);
  // The callbacks give the memory of messages back, in which peers may be reading (MappedPort::copy).
  announce_before_writes();
  mapped_.stop();
  if (remote_) remote_->stop();
  for (auto& [number, send] : sends_) finished_.push_back({std::move(send.done), -1, stopped_});
  for (auto& [number, receive] : receives_) finished_.push_back({std::move(receive.done), -1, stopped_});
  sends_.clear();
  receives_.clear();
  taking_.clear();
  matching_ = MessageMatching();
}

}  // namespace vccl
