#include "transport/bootstrap/meeting.hpp"

#include <algorithm>
#include <exception>
#include <new>
#include <string_view>
#include <thread>

#include "base/periods.hpp"
#include "base/text.hpp"
#include "transport/earlier.hpp"
#include "transport/interruption_check.hpp"
#include "transport/msgpack.hpp"
#include "transport/state/failure_channel.hpp"
#include "transport/support/error_text.hpp"
#include "transport/support/log.hpp"

namespace vccl {
namespace {

using msgpack::Map;
using msgpack::Value;

/// The key under which a rank that cannot join publishes why. The first one to be set counts. It has no
/// version, so that ranks of every version can read it.
const char kFailure[] = "failure";
/// The key of the calls that make groups under the prefix: one of several ranks, as the first of them made
/// it, and those of single ranks. The key stays when the meeting is over, so that a rank that comes later
/// with another group finds the contradiction, too. A contradiction replaces it, for the ranks that come
/// afterwards.
const char kIdentity[] = "identity";
// How many records are asked for in one look, of ranks whose records are not known yet. Every rank begins
// with the ranks after itself, so that waiting ranks ask for different records and a group of many ranks does
// not flood the store.
constexpr int kRecordsAtOnce = 4;
constexpr Milliseconds kReasonPatience{1'000};

std::optional<std::string> value_of(Store& store, const std::string& key) {
  try {
    return store.get(key, Deadline::in(Milliseconds(0)));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout) throw;
    return std::nullopt;
  }
}

Map failure_of(const Error& error) {
  return {{"code", static_cast<int>(error.code())}, {"error", error.what()}};
}

Error failure_in(const Value& record) {
  return Error(static_cast<ErrorCode>(record.at("code").as_int(0, static_cast<int>(ErrorCode::system))),
               record.at("error").as_string());
}

/// Returns whether the record of a key is a contradiction that concerns the call `own`: one of several ranks
/// is always concerned, because some of them may have met under the key already.
bool concerns(const Value& record, const MeetingIdentity& own) {
  if (!record.has("error")) return false;
  const auto lists = decoded_lists(record.at("lists"));
  return !own.alone() || std::ranges::find(lists, own.ranks) != lists.end();
}

bool names_its_cause(ErrorCode code) {
  return code == ErrorCode::timeout || code == ErrorCode::peer_dead || code == ErrorCode::peer_left ||
         code == ErrorCode::aborted || code == ErrorCode::mismatch;
}

}  // namespace

std::string RankEnd::text(const RankNames& names, int rank) const {
  const std::string who =
      names.rank(rank, base::text("pid ", pid, host.empty() ? "" : base::text(", host ", host)));
  switch (how) {
    case How::died:
      return base::text(who, " died");
    case How::left:
      return base::text(who, " left");
    case How::lost:
      return base::text("the connection to ", who, " ended");
    default:
      return base::text("the process of ", who, " has ended");
  }
}

std::string Meeting::get(const std::string& key, const Deadline& deadline) {
  while (true) {
    if (serve_links_) serve_links_();
    const Deadline slice = Deadline::in(base::kMeetingPeriod);
    const bool last = slice.at >= deadline.at;
    try {
      return store_.get(own_keys_ + key, last ? deadline : slice);
    } catch (const Error& error) {
      // A store that fails has often died with the rank that served it.
      if (error.code() == ErrorCode::bootstrap) look_for_reason();
      if (error.code() != ErrorCode::timeout) throw;
      look();
      if (!last) continue;
      throw Error(ErrorCode::timeout,
                  base::text(names_.rank(config_.rank), " waited ", duration_text(deadline.length),
                             " while group ", config_.name, " was put together"));
    }
  }
}

std::string Meeting::await(int rank, const std::string& key, const char* what) {
  try {
    return get(key, deadline_);
  } catch (const Error& error) {
    // A failure that has come over a link may be another rank's timeout.
    if (error.code() != ErrorCode::timeout || heard_ || !deadline_.passed()) throw;
    throw Error(ErrorCode::timeout,
                base::text(names_.rank(config_.rank), " waited ", duration_text(deadline_.length), " for ",
                           names_.rank(rank), " ", what, " while group ", config_.name,
                           " was put together. Look for a rank that is stuck or slow, or raise "
                           "the timeout."));
  }
}

std::optional<std::string> Meeting::try_get(const std::string& key) {
  return value_of(store_, own_keys_ + key);
}

void Meeting::announce_to(Store& store, const std::string& prefix, const Error& error) {
  if (!has_failed(store, prefix)) store.set(prefix + kFailure, msgpack::encode(failure_of(error)));
}

bool Meeting::has_failed(Store& store, const std::string& prefix) {
  return value_of(store, prefix + kFailure).has_value();
}

void Meeting::check_identity(Store& store, const CommunicatorConfig& config) {
  const auto found = value_of(store, kIdentity);
  if (!found) return;
  const Value record = read_record(*found, -1);
  if (concerns(record, MeetingIdentity::of(config))) throw failure_in(record);
}

// This costs one use of the store, and one more for each group of one rank that is made under the same key.
// No record of a rank is published before the rank has found the same identity, so no rank reads the record
// of a rank that makes another group.
void Meeting::prove_identity() {
  const MeetingIdentity own = MeetingIdentity::of(config_);
  std::vector<MeetingIdentity> calls;  // all that were made under the key so far
  std::string before;
  while (true) {
    calls.push_back(own);
    const std::string encoded = encoded_identities(calls);
    std::string found = store_.compare_set(kIdentity, before, encoded);
    if (found == encoded) return;
    const Value record = read_record(found, -1);
    if (record.has("error")) {
      if (!concerns(record, own)) return;
      heard_ = true;
      throw failure_in(record);
    }
    calls = decoded_identities(record);
    for (const MeetingIdentity& other : calls) {
      if (own.contradicts(other)) tell_contradiction(own, other);
    }
    if (std::ranges::any_of(calls, [&](const auto& other) { return own.same_meeting(other); })) return;
    before = std::move(found);
  }
}

void Meeting::tell_contradiction(const MeetingIdentity& own, const MeetingIdentity& other) {
  const Error error = contradiction(own, other);
  const std::vector<std::vector<std::uint64_t>> lists = {own.ranks, other.ranks};
  Map record = failure_of(error);
  record.emplace("lists", encoded_lists(lists));
  store_.set(kIdentity, encode_record(std::move(record)));
  announce_to(store_, "", error);  // where the group of several ranks looks, if this rank is alone
  notices_.post(error, lists);
  throw error;
}

void Meeting::join(const RankRecord& own) {
  prove_identity();
  own_ = own;
  joined_ = true;
  set(joined_key(own.rank), encode(own, config_.size));
}

void Meeting::know(const std::vector<RankRecord>& records) {
  for (const RankRecord& record : records) know(record);
  all_known_ = true;
}

void Meeting::know(const RankRecord& record) {
  if (record.rank != own_.rank) processes_.try_emplace(record.rank, process_of(record, own_));
}

void Meeting::warn() const {
  if (config_.rank >= kMostExplaining) return;
  const auto waited = Clock::now() - began_;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(waited);
  Log(LogLevel::none, names_.in_job(config_.rank), config_.name)
      .always(base::text(names_.rank(config_.rank), " has waited ", duration_text(seconds),
                         " for the other ranks while group ", config_.name,
                         " is put together, and goes on waiting.", explanation(waited)));
}

void Meeting::look() {
  if (warning_ && warning_->due(Clock::now())) warn();
  if (Clock::now() >= next_look_) look_now();
}

void Meeting::look_now() {
  if (const std::string by = interruption(); !by.empty())
    throw Error(ErrorCode::aborted, base::text(names_.rank(config_.rank), " was interrupted by ", by,
                                               " while group ", config_.name, " was put together"));
  check_announced();
  check_notices();
  if (watches_deaths_) {
    read_some_records();
    check_deaths();
  }
  next_look_ = Clock::now() + base::kMeetingPeriod;
}

void Meeting::look_for_reason() {
  const Deadline patience = Deadline::in(kReasonPatience);
  while (true) {
    try {
      look_now();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::bootstrap || heard_) throw;
      check_deaths();  // the store is gone and has no answer
    }
    if (patience.passed()) return;
    std::this_thread::sleep_for(Milliseconds(20));
  }
}

void Meeting::check_announced() {
  if (config_.earlier) config_.earlier->check();
  const auto announced = try_get(kFailure);
  if (!announced) return;
  const Value record = msgpack::decode(*announced);
  const Error error = failure_in(record);
  heard_ = true;
  throw error;
}

void Meeting::check_notices() {
  const MeetingIdentity own = MeetingIdentity::of(config_);
  notices_.check(own.rank, own.ranks);
}

/// Asks for rank 0 first, because the other ranks wait for it and it may serve the store.
void Meeting::read_some_records() {
  if (!joined_ || all_known_) return;
  const auto look_for = [this](int rank) {
    if (rank == own_.rank || processes_.contains(rank)) return;
    if (const auto record = try_get(joined_key(rank)))
      know(to_rank_record(read_record(*record, rank, names_)));
  };
  look_for(0);
  for (int i = 0; i < std::min(kRecordsAtOnce, config_.size - 1); ++i) {
    next_record_ = next_record_ % (config_.size - 1) + 1;
    look_for((own_.rank + next_record_) % config_.size);
  }
}

void Meeting::check_deaths() {
  std::string dead, gone;
  const auto add = [](std::string& text, const std::string& more) {
    text += (text.empty() ? "" : " and ") + more;
  };
  for (int rank = 0; rank < config_.size; ++rank) {
    if (rank == config_.rank) continue;
    const auto process = processes_.find(rank);
    if (process != processes_.end() && process->second.dead()) {
      add(dead, RankEnd{RankEnd::How::died, process->second.pid()}.text(names_, rank));
    } else if (const auto end = config_.earlier ? config_.earlier->end_of(rank) : std::nullopt) {
      add(end->how == RankEnd::How::left ? gone : dead, end->text(names_, rank));
    }
  }
  if (dead.empty() && gone.empty()) return;
  // What these ranks announced while they lived is in the store by now.
  try {
    check_announced();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::bootstrap || heard_) throw;  // ignored: the store may have died with them
  }
  throw Error(dead.empty() ? ErrorCode::peer_left : ErrorCode::peer_dead,
              base::text(dead.empty() ? gone : dead, " while group ", config_.name, " was put together, as ",
                         names_.rank(config_.rank), " noticed. Read that rank's own output first."));
}

Error Meeting::give_up(const FailureChannel* failures) noexcept {
  const Error error = own_error(failures);
  if (!heard_) announce(error);
  return error;
}

Error Meeting::own_error(const FailureChannel* failures) const {
  const std::string who = base::text(names_.rank(config_.rank), " could not join group ", config_.name);
  try {
    throw;
  } catch (const Error& error) {
    const bool of_group =
        failures && failures->happened() && std::string_view(error.what()) == failures->error().what();
    const bool interrupted = std::string_view(error.what()).starts_with("interrupted by");
    if (of_group || heard_ || (names_its_cause(error.code()) && !interrupted)) return error;
    return Error(error.code(), base::text(who, ": ", error.what()));
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::system,
                 base::text(who,
                            ": there is not enough memory. Look at the limits (ulimit -v, the "
                            "container's) and at what else runs there."));
  } catch (const std::exception& error) {
    return Error(ErrorCode::system, base::text(who, ": ", error.what()));
  } catch (...) {
    return Error(ErrorCode::system, who);
  }
}

void Meeting::announce(const Error& error) noexcept {
  try {
    if (has(kFailure)) return;
    // An invalid argument of this rank is no fault of the other ranks.
    const bool own_argument = error.code() == ErrorCode::invalid || error.code() == ErrorCode::unsupported;
    const ErrorCode code = own_argument ? ErrorCode::bootstrap : error.code();
    set(kFailure, msgpack::encode(failure_of(Error(code, error.what()))));
  } catch (const std::exception&) {
    // The store is gone, which the other ranks notice by themselves.
  }
}

}  // namespace vccl
