#include "transport/links/remote_links.hpp"

#include <sys/eventfd.h>

#include <algorithm>
#include <optional>

#include "base/system_calls.hpp"
#include "base/text.hpp"
#include "transport/connections/control_messages.hpp"
#include "transport/msgpack.hpp"
#include "transport/state/lost_ranks.hpp"
#include "transport/support/error_text.hpp"

namespace vccl {
namespace {

using msgpack::Map;
using msgpack::Value;

Error breach(const std::string& what) {
  return Error(ErrorCode::protocol, what);
}

}  // namespace

void RemoteLinks::connect(Meeting& meeting, int left, int right, const LinkSettings& settings) {
  wake_ = FileDescriptor(base::make_event_counter());
  if (!wake_) throw_system("eventfd");
  // A link is kept once it has its socket. No other thread uses it until both neighbours have answered.
  if (left >= 0) {
    auto link = std::make_unique<RemoteLink>(group_, failures_, settings, RemoteLink::Side::left, left);
    link->socket = std::make_unique<ZmqSocket>(ZmqSocket::Kind::host, settings.silence);
    link->listener = ListenerRecord::listen(*link->socket, settings, 1, group_.log);
    Map record;
    link->offer_stream(record);
    meeting.set(key_of(group_.rank), link->listener.encode(std::move(record)));
    group_.log.info(base::text("listening for ", group_.rank_text(left), " on ", link->listener.endpoint));
    left_ = std::move(link);
  }
  if (right >= 0) {
    auto link = std::make_unique<RemoteLink>(group_, failures_, settings, RemoteLink::Side::right, right);
    const std::string key = key_of(right);
    const Value record =
        read_record(meeting.await(right, key, "to tell where it listens"), right, group_.names);
    link->learn(ListenerRecord::read(record));
    meeting.remove(key);
    link->connect(ZmqSocket::Kind::pair, link->accept_stream(record));
    right_ = std::move(link);
  }
  const auto greeted = [](const auto& link) { return [&] { return !link->is(State::unknown); }; };
  if (left_) {
    until(greeted(left_), *left_, "to connect in");
    if (left_->receiver) await_stream(*left_);
  }
  if (right_) until(greeted(right_), *right_, "to answer in");
}

void RemoteLinks::settle() {
  std::lock_guard lock(mutex_);
  for (RemoteLink* link : {left_.get(), right_.get()})
    if (link) link->settled = true;
}

// The neighbour opens the stream as soon as it reads this rank's hello, so a firewall that lets only the
// first connection pass shows here and not in the first long collective.
void RemoteLinks::await_stream(RemoteLink& link) {
  const Deadline patience = Deadline::in(link.settings.patience());
  until([&] { return link.receiver->greeted() || patience.passed(); }, link,
        "to open its stream of blocks in");
  if (link.receiver->greeted()) return;
  failures_.raise(
      ErrorCode::bootstrap,
      base::text(link.peer_text(), " has connected to ", group_.own_text(), " (", link.listener.endpoint,
                 ", host ", link.settings.host, "), but not to ", link.receiver->endpoint(), " within ",
                 duration_text(patience.length), ", where blocks from there have to come in: ", kFirewall));
}

void RemoteLinks::begin() {
  right_is_to_be_told_ = true;
  Map fields = take_announcement();
  tell_releases();
  if (left_) send(*left_, "begin", fields);
  if (right_) send(*right_, "begin", std::move(fields));
  compare_early_begins();
}

void RemoteLinks::begin_with_block() {
  right_is_to_be_told_ = true;
  compare_early_begins();
}

Map RemoteLinks::take_announcement() {
  if (!std::exchange(right_is_to_be_told_, false)) return {};
  Map fields = signature_fields(operation_.signature());
  fields["seq"] = operation_.sequence();
  fields["algorithm"] = std::uint64_t{operation_.algorithm()};
  fields["order"] = std::uint64_t{operation_.order()};
  return fields;
}

// The announcement of a faster neighbour may have come already, and its first short block with it or behind
// it. It is compared at the beginning, because otherwise that block could be taken before the signatures are
// compared. Long blocks may overtake the announcement on a connection of their own, and wait for it
// (agrees()).
void RemoteLinks::compare_early_begins() {
  begun_ = operation_.sequence();
  std::lock_guard lock(mutex_);
  if (left_) compare_begins(*left_);
  if (right_) compare_begins(*right_);
}

void RemoteLinks::match() {
  const std::uint64_t number = operation_.sequence();
  for (RemoteLink* link : {left_.get(), right_.get()}) {
    if (link) until([&] { return link->compared == number; }, *link, "to begin");
  }
}

std::optional<Error> RemoteLinks::receive_all() {
  std::optional<Error> wrong;
  for (RemoteLink* link : {left_.get(), right_.get()}) {
    if (!link) continue;
    auto found = receive_from(*link);
    if (!wrong) wrong = std::move(found);
  }
  return wrong;
}

std::optional<Error> RemoteLinks::receive_from(RemoteLink& link) {
  try {
    auto handle = [&](ZmqSocket::Received& received) { understand(link, std::move(received)); };
    link.receive_ready(handle);
    compare_begins(link);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::protocol || link.is(State::told)) return error;
    return Error(error.code(), base::text(group_.rank_text(link.rank), " sent ", group_.own_text(),
                                          " what no rank sends, in ", operation_.text(), ": ", error.what()));
  }
  return std::nullopt;
}

void RemoteLinks::send(RemoteLink& link, const char* type, Map fields,
                       std::optional<std::span<const std::byte>> block) {
  std::lock_guard lock(mutex_);
  link.send_surely(type, std::move(fields), block);
  // A send may have noticed that something has arrived, which the descriptor then does not show.
  link.ready.control = true;
}

void RemoteLinks::understand(RemoteLink& link, ZmqSocket::Received received) {
  if (link.is_apart(received)) return link.understand_apart(received);
  if (received.excess) throw breach("a message of more than two frames");
  const Value message = read_control(received.control, link.rank, group_.names);
  const std::string& type = message.at("t").as_string();
  const bool from_left = link.side == RemoteLink::Side::left;
  if (type == "hello") {
    if (link.is(State::unknown)) return link.greet(message, received);
    if (message.has("again")) return;  // it is late, and said nothing new
    // Another one would begin the stream anew, with the same keys.
    throw breach("a second greeting");
  } else if (link.is(State::unknown)) {
    // A neighbour that fails between our greeting and its answer says its last words in the place of the
    // answer.
    if (!link.read_last_words(message)) throw breach("something before its greeting");
  } else if (type == "begin") {
    link.journal.hear();
    link.journal.confirm(message.at("heard").as_uint());
    understand_begin(link, message);
  } else if (type == "block" && from_left && received.payload) {
    link.journal.hear();
    link.journal.confirm(message.at("heard").as_uint());
    if (message.at("n").as_uint() != ++link.received || link.blocks.size() >= Communicator::kSlots) {
      throw breach("a block that is not the next");
    }
    if (message.has("algorithm")) understand_begin(link, message);
    link.blocks.push_back({message.at("seq").as_uint(), std::move(*received.payload)});
  } else if (type == "release" && !from_left) {
    const std::uint64_t count = message.at("n").as_uint();
    if (count < link.released || count > link.posted) throw breach("the release of a block that it has not");
    link.released = count;
    link.confirm(count);
    link.journal.confirm(message.at("heard").as_uint());
  } else if (type == "lost") {
    LostRanks(group_).add(static_cast<int>(message.at("rank").as_int(0, group_.size - 1)));
  } else if (type == "ping" && !from_left) {
    link.send_loosely("pong", {{"n", message.at("n").as_uint()}});
  } else if (type == "pong" && from_left) {
    link.understand_pong(message.at("n").as_uint());
  } else if (!link.read_last_words(message)) {
    throw breach(base::text("a message of type \"", cut_text(type, 32), "\""));
  }
}

// A neighbour may be ahead of this rank by as many operations as it may send blocks to this rank, if they go
// over other links as well (Route::some_leaps), and else by one.
void RemoteLinks::understand_begin(RemoteLink& link, const Value& message) {
  link.begins.push_back({message.at("seq").as_uint(), read_signature(message),
                         static_cast<std::uint32_t>(message.at("algorithm").as_int(0, UINT32_MAX)),
                         static_cast<std::uint32_t>(message.at("order").as_int(0, UINT32_MAX))});
  if (link.begins.size() > Communicator::kSlots)
    throw breach("the beginnings of operations without waiting for their ends");
}

void RemoteLinks::tell_releases() {
  if (!left_ || left_->told == left_->consumed) return;
  left_->told = left_->consumed;
  std::lock_guard lock(mutex_);
  left_->send_loosely("release", {{"n", left_->told}});
  left_->ready.control = true;  // as in send()
}

void RemoteLinks::send(RemoteLink& link, const BlockSender::Prepared& block) {
  std::lock_guard lock(mutex_);
  link.send(block);
}

void RemoteLinks::compare_begins(RemoteLink& link) {
  const std::uint64_t current = operation_.sequence();
  if (link.begins.empty() || link.begins.front().sequence > current) return;
  const auto [number, theirs, algorithm, order] = link.begins.front();
  link.begins.pop_front();
  if (number <= link.compared) throw breach(base::text("the beginning of operation ", number, " twice"));
  // Operations that both ranks announced on other links are left out. This rank has done operation `number`
  // without the link, so it was another call or another algorithm.
  if (number != current) {
    throw Error(
        ErrorCode::mismatch,
        base::text(group_.rank_text(link.rank), " called ", group_.describe_signature(theirs),
                   " as operation ", number, " of group ", group_.name, ", but ", group_.own_text(),
                   " called something else or chose another algorithm, and is in ", operation_.text(),
                   " by now. Every rank must call the same collectives in the same order with the same "
                   "arguments, and VCCL_ALGO must be the same on every rank."));
  }
  link.compared = number;
  // The lower rank is named first, so that the text is the same whichever of the two finds the difference.
  const bool first = group_.rank < link.rank;
  if (theirs != operation_.signature()) {
    throw Error(ErrorCode::mismatch,
                first ? operation_.mismatch_text(group_.rank, operation_.signature(), link.rank, theirs)
                      : operation_.mismatch_text(link.rank, theirs, group_.rank, operation_.signature()));
  }
  if (algorithm != operation_.algorithm()) {
    throw Error(ErrorCode::mismatch, first ? operation_.algorithms_text(group_.rank, link.rank)
                                           : operation_.algorithms_text(link.rank, group_.rank));
  }
  if (order != 0 && operation_.order() != 0 && order != operation_.order()) {
    throw Error(ErrorCode::mismatch, first ? operation_.order_text(group_.rank, link.rank)
                                           : operation_.order_text(link.rank, group_.rank));
  }
}

void RemoteLinks::receive(Ends ends) noexcept {
  std::optional<Error> wrong, end;
  {
    std::lock_guard lock(mutex_);
    poll_locked(Milliseconds(0));
    wrong = receive_all();
    pass_on_losses();
    if (ends == Ends::in_operation) {
      end = end_of(nullptr, "in");
    } else if (const RemoteLink* gone = ends == Ends::after_operation ? long_gone() : nullptr) {
      end = Error(ErrorCode::peer_dead, base::text(gone->end_text(), " after ", operation_.text(), kWhyGone));
    }
  }
  try {
    tell_releases();
  } catch (const Error& error) {
    if (!wrong) wrong = error;
  }
  try {
    if ((wrong || end) && ends == Ends::in_operation) failures_.await_reason();  // as in look()
  } catch (const Error& reason) {
    wrong = reason;
  }
  if (wrong) {
    failures_.fail(wrong->code(), wrong->what());
  } else if (end) {
    failures_.fail_for_end(end->code(), end->what());
  }
  if (failures_.happened()) spread_failure();
}

std::optional<RankEnd> RemoteLinks::end_of_peer(int rank) noexcept {
  for (const RemoteLink* link : {left_.get(), right_.get()}) {
    if (!link || link->rank != rank) continue;
    // A thread that waits holds the mutex for long. It looks itself, and fails the group if the peer has
    // gone.
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return std::nullopt;
    const pid_t pid = group_.elsewhere.at(rank).pid();
    const std::string host = group_.host_name(rank);
    if (link->is(State::left)) return RankEnd{RankEnd::How::left, pid, false, host};
    if (link->is(State::open) && link->end.over()) return RankEnd{RankEnd::How::lost, pid, true, host};
  }
  return std::nullopt;
}

void RemoteLinks::pass_on_losses() {
  LostRanks lost(group_);
  if (const RemoteLink* gone = long_gone()) lost.add(gone->rank);
  for (RemoteLink* link : {left_.get(), right_.get()}) {
    if (!link || link->socket->closed() || link->end.noticed() || !link->in_touch() ||
        !(link->is(State::open) || link->is(State::told)))
      continue;
    for (; const auto rank = lost.at(link->lost_told); ++link->lost_told)
      if (*rank != link->rank) {
        link->send_loosely("lost", {{"rank", *rank}});
        link->ready.control = true;  // as in send()
      }
  }
}

}  // namespace vccl
