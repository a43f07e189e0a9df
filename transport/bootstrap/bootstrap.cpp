#include "transport/bootstrap/bootstrap.hpp"

#include <algorithm>
#include <map>

#include "base/text.hpp"
#include "transport/explanation.hpp"
#include "transport/msgpack.hpp"
#include "transport/support/error_text.hpp"
#include "transport/system/machine.hpp"

namespace vccl {
namespace {

using msgpack::Array;
using msgpack::Value;

const char kTable[] = "table";

std::string host_key_of(int leader) {
  return base::text("host/", leader);
}

}  // namespace

std::vector<RankRecord> Bootstrap::meet(const RankRecord& own) {
  meeting_.join(own);
  try {
    std::vector<RankRecord> records = own.rank == 0 ? collect() : read_table(own);
    meeting_.know(records);
    return records;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout || meeting_.heard()) throw;
    throw late();
  }
}

std::vector<RankRecord> Bootstrap::read_table(const RankRecord& own) {
  std::vector<RankRecord> records;
  const Value table = read_record(meeting_.get(kTable, deadline_), 0, names_);
  for (const Value& entry : table.at("ranks").as_array()) records.push_back(to_rank_record(entry));
  if (static_cast<int>(records.size()) != config_.size) {
    throw Error(ErrorCode::protocol,
                base::text(names_.rank(0), " counts ", records.size(), " ranks in group ", config_.name, ", ",
                           names_.rank(config_.rank), " counts ", config_.size));
  }
  // A listener's name is random. A table with another name is left from an earlier job, or has the record of
  // another process that joined as this rank.
  const RankRecord& listed = records[static_cast<std::size_t>(config_.rank)];
  if (listed.socket != own.socket) {
    throw Error(ErrorCode::mismatch,
                base::text(names_.rank(config_.rank, base::text("pid ", own.pid)), " found process ",
                           listed.pid, " in its place in group ", config_.name,
                           ": another job uses the same store, or left its records there. Give each job a "
                           "store, port or prefix of its own."));
  }
  id_ = table.at("id").as_string();
  return records;
}

/// Rank 0 reads every rank's record and publishes all of them under one key. So rank 0 reads every record,
/// and every other rank needs one read instead of one for each rank.
std::vector<RankRecord> Bootstrap::collect() {
  std::vector<RankRecord> records;
  Array table;
  for (int rank = 0; rank < config_.size; ++rank) {
    const Value value = read_record(meeting_.get(joined_key(rank), deadline_), rank, names_);
    if (value.at("rank") != Value(rank) || value.at("size") != Value(config_.size)) {
      throw Error(ErrorCode::protocol, base::text(names_.rank(rank), " of group ", config_.name, " counts ",
                                                  value.at("size").as_int(INT64_MIN, INT64_MAX), " ranks, ",
                                                  names_.rank(0), " counts ", config_.size));
    }
    records.push_back(to_rank_record(value));
    table.push_back(value);
  }
  id_ = random_hex(16);
  meeting_.set(kTable, encode_record({{"ranks", table}, {"id", id_}}));
  return records;
}

bool Bootstrap::explains(const std::vector<int>& joined) const {
  return std::ranges::find(joined, config_.rank) - joined.begin() < kMostExplaining;
}

Error Bootstrap::late() {
  std::vector<int> absent, joined;
  for (int rank = 0; rank < config_.size; ++rank) {
    (meeting_.has(joined_key(rank)) ? joined : absent).push_back(rank);
  }
  const std::string when = base::text(" within the timeout of ", duration_text(deadline_.length));
  if (absent.empty()) {
    return Error(
        ErrorCode::timeout,
        base::text(names_.rank(0), " did not tell who joined group ", config_.name, when, ", as ",
                   names_.rank(config_.rank), " waited for. Look for what keeps it, or raise the timeout."));
  }
  return Error(ErrorCode::timeout,
               base::text(names_.ranks(absent), " did not join group ", config_.name, when,
                          " (joined: ", names_.numbers(joined), "; according to ", names_.rank(config_.rank),
                          "). Look for what keeps the missing, or raise the timeout.",
                          explains(joined) ? explanation(deadline_.length) : ""));
}

std::vector<std::vector<int>> Bootstrap::agree_on_hosts(const std::vector<std::vector<RankRecord>>& claimed,
                                                        const std::vector<int>& own) {
  std::vector<std::vector<int>> hosts;
  for (const auto& claim : claimed) {
    const int leader = claim.front().rank;
    const std::string key = host_key_of(leader);
    const bool others_ask = claimed.size() > 1 || own.size() < claim.size();
    if (leader == config_.rank && claim.size() > 1 && others_ask) {
      Array ranks;
      for (int rank : own) ranks.emplace_back(rank);
      meeting_.set(key, encode_record({{"ranks", ranks}}));
    }
    std::vector<int> proven;
    if (claim.size() == 1 || own.front() == leader) {
      proven = claim.size() == 1 ? std::vector<int>{leader} : own;
    } else {
      const Value record =
          read_record(meeting_.await(leader, key, "to tell which ranks share its host"), leader, names_);
      for (const Value& entry : record.at("ranks").as_array()) {
        proven.push_back(static_cast<int>(entry.as_int(0, config_.size - 1)));
      }
    }
    hosts.push_back(proven);
    for (const RankRecord& record : claim) {
      if (std::find(proven.begin(), proven.end(), record.rank) == proven.end())
        hosts.push_back({record.rank});
    }
  }
  std::sort(hosts.begin(), hosts.end());
  return hosts;
}

void Bootstrap::clean(const std::vector<std::vector<RankRecord>>& claimed) {
  // The records are removed only now: until a rank has read the table, it watches the other ranks by them.
  for (int rank = 0; rank < config_.size; ++rank) meeting_.remove(joined_key(rank));
  meeting_.remove(kTable);
  for (const auto& claim : claimed) {
    if (claim.size() > 1) meeting_.remove(host_key_of(claim.front().rank));
  }
}

std::vector<std::vector<RankRecord>> claimed_hosts(const std::vector<RankRecord>& records) {
  std::vector<std::vector<RankRecord>> claimed;
  std::map<std::pair<std::string, std::string>, std::size_t> places;
  for (const RankRecord& record : records) {
    const auto [place, fresh] = places.emplace(std::pair(record.machine, record.host_id), claimed.size());
    if (fresh) claimed.emplace_back();
    claimed[place->second].push_back(record);
  }
  return claimed;
}

}  // namespace vccl
