#include "transport/bootstrap/identity.hpp"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "base/fork.hpp"
#include "base/text.hpp"
#include "transport/rank_names.hpp"
#include "transport/support/protocol.hpp"
#include "transport/system/machine.hpp"

namespace vccl {
namespace {

using msgpack::Array;
using msgpack::Value;

Array encoded_ranks(const std::vector<std::uint64_t>& ranks) {
  return Array(ranks.begin(), ranks.end());
}

std::vector<std::uint64_t> decoded_ranks(const Value& value) {
  std::vector<std::uint64_t> ranks;
  for (const Value& rank : value.as_array()) ranks.push_back(rank.as_uint());
  return ranks;
}

bool counts_from_zero(const std::vector<std::uint64_t>& ranks) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] != i) return false;
  }
  return true;
}

constexpr std::string_view kBeforeSettings = ", ";

std::string_view name_of(const MeetingIdentity& identity) {
  return std::string_view(identity.call).substr(0, identity.call.find(kBeforeSettings));
}

std::string_view settings_of(const MeetingIdentity& identity) {
  const auto at = identity.call.find(kBeforeSettings);
  return at == std::string::npos ? "none"
                                 : std::string_view(identity.call).substr(at + kBeforeSettings.size());
}

bool differ_in_settings(const MeetingIdentity& own, const MeetingIdentity& other) {
  return name_of(own) == name_of(other) && own.ranks == other.ranks;
}

std::string call_text(const MeetingIdentity& identity) {
  const bool of_all = name_of(identity) != "new_group" && counts_from_zero(identity.ranks);
  return base::text("called ", name_of(identity), " for ",
                    of_all ? base::text(identity.ranks.size(), " ranks") : global_ranks_text(identity.ranks));
}

std::string advice(const MeetingIdentity& own, const MeetingIdentity& other) {
  if (name_of(own) == "new_group" && name_of(other) == "new_group") {
    return "All ranks of the job must call new_group for all groups in the same order, also for groups that "
           "they are not in. Do that, or pass use_local_synchronization=True.";
  }
  return "All ranks must make the same groups in the same order, and each job needs a store, port or prefix "
         "of its own.";
}

std::string notice_key(std::uint64_t rank) {
  return base::text("notice/", rank);
}

/// The notices that this process has thrown.
struct Thrown {
  std::mutex mutex;
  std::set<std::string> ids;
};

bool throws_first(const std::string& id) {
  static base::OnePerProcess<Thrown> thrown;
  Thrown& all = thrown.get();
  std::lock_guard lock(all.mutex);
  return all.ids.insert(id).second;
}

}  // namespace

MeetingIdentity MeetingIdentity::of(const CommunicatorConfig& config) {
  MeetingIdentity own{config.call, config.global_ranks, config.name, 0};
  if (own.ranks.empty()) {
    own.ranks.resize(static_cast<std::size_t>(config.size));
    std::iota(own.ranks.begin(), own.ranks.end(), 0);
  }
  own.rank = own.ranks.at(static_cast<std::size_t>(config.rank));
  return own;
}

bool MeetingIdentity::contradicts(const MeetingIdentity& other) const {
  if (same_meeting(other)) return false;
  if (!alone() && !other.alone()) return true;
  return std::ranges::find_first_of(ranks, other.ranks) != ranks.end();
}

std::string encoded_identities(const std::vector<MeetingIdentity>& identities) {
  Array calls;
  for (const MeetingIdentity& made : identities) {
    calls.emplace_back(msgpack::Map{{"call", made.call},
                                    {"ranks", encoded_ranks(made.ranks)},
                                    {"group", made.group},
                                    {"rank", made.rank}});
  }
  return encode_record({{"calls", std::move(calls)}});
}

std::vector<MeetingIdentity> decoded_identities(const Value& record) {
  std::vector<MeetingIdentity> identities;
  for (const Value& call : record.at("calls").as_array()) {
    identities.push_back({call.at("call").as_string(), decoded_ranks(call.at("ranks")),
                          call.at("group").as_string(), call.at("rank").as_uint()});
  }
  return identities;
}

Error contradiction(const MeetingIdentity& own, const MeetingIdentity& other) {
  if (differ_in_settings(own, other)) {
    return Error(ErrorCode::mismatch,
                 base::text("rank ", own.rank, " makes group ", own.group, " with ", settings_of(own),
                            ", but rank ", other.rank, " with ", settings_of(other),
                            ". All ranks of a group need the same settings; what is unset has its default."));
  }
  return Error(ErrorCode::mismatch, base::text("rank ", own.rank, " ", call_text(own), ", but rank ",
                                               other.rank, " ", call_text(other), ", and both are group ",
                                               own.group, " of the same store. ", advice(own, other)));
}

Array encoded_lists(const std::vector<std::vector<std::uint64_t>>& lists) {
  Array encoded;
  for (const auto& list : lists) encoded.emplace_back(encoded_ranks(list));
  return encoded;
}

std::vector<std::vector<std::uint64_t>> decoded_lists(const Value& value) {
  std::vector<std::vector<std::uint64_t>> lists;
  for (const Value& list : value.as_array()) lists.push_back(decoded_ranks(list));
  return lists;
}

void NoticeBoard::post(const Error& error, const std::vector<std::vector<std::uint64_t>>& lists) noexcept {
  if (!store_) return;
  try {
    std::set<std::uint64_t> readers;
    for (const auto& list : lists) readers.insert(list.begin(), list.end());
    const std::string notice = encode_record({{"id", random_hex(8)},
                                              {"code", static_cast<int>(error.code())},
                                              {"error", error.what()},
                                              {"lists", encoded_lists(lists)}});
    for (const std::uint64_t rank : readers) store_->set(notice_key(rank), notice);
  } catch (const std::exception&) {
  }
}

void NoticeBoard::check(std::uint64_t rank, const std::vector<std::uint64_t>& ranks) {
  if (!store_) return;
  std::string found;
  try {
    found = store_->get(notice_key(rank), Deadline::in(Milliseconds(0)));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout) throw;
    return;
  }
  const Value notice = read_record(found, -1);
  const auto lists = decoded_lists(notice.at("lists"));
  const bool concerns = std::ranges::find(lists, ranks) != lists.end();
  if (!concerns || !throws_first(notice.at("id").as_string())) return;
  throw Error(static_cast<ErrorCode>(notice.at("code").as_int(0, static_cast<int>(ErrorCode::system))),
              notice.at("error").as_string());
}

}  // namespace vccl
