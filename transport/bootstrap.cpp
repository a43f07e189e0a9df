#include "transport/bootstrap.hpp"

#include <algorithm>
#include <map>

#include "transport/group.hpp"
#include "transport/msgpack.hpp"

namespace vccl {
namespace {

using msgpack::Array;
using msgpack::Map;
using msgpack::Value;

constexpr int kVersion = 1;
const char kTable[] = "table";

std::string joined_key(int rank) {
  return "joined/" + std::to_string(rank);
}
std::string host_key_of(int leader) {
  return "host/" + std::to_string(leader);
}

Map to_map(const RankRecord& record, int size) {
  return {{"v", kVersion},
          {"rank", record.rank},
          {"size", size},
          {"machine", record.machine},
          {"host_id", record.host_id},
          {"pid", record.pid},
          {"pid_space", record.pid_space},
          {"socket", record.socket}};
}

RankRecord to_record(const Value& value) {
  return {static_cast<int>(value.at("rank").as_int(0, INT32_MAX)),
          value.at("machine").as_string(),
          value.at("host_id").as_string(),
          value.at("pid").as_int(0, INT64_MAX),
          value.at("pid_space").as_string(),
          value.at("socket").as_string()};
}

/// A record of the store, its version checked. Records of a rank that gave up carry the reason.
Value read_record(const std::string& bytes, const std::string& key) {
  Value value = msgpack::decode(bytes);
  if (const auto version = value.at("v").as_int(0, INT32_MAX); version != kVersion) {
    throw Error(ErrorCode::protocol, "the record " + key + " has version " + std::to_string(version) +
                                         " where this rank speaks version " + std::to_string(kVersion) +
                                         ": all ranks must run the same version of vccl");
  }
  if (value.has("error")) {
    const auto code = value.at("code").as_int(0, static_cast<int>(ErrorCode::system));
    throw Error(static_cast<ErrorCode>(code), value.at("error").as_string());
  }
  return value;
}

std::string error_record(ErrorCode code, const std::string& why) {
  return msgpack::encode(Map{{"v", kVersion}, {"code", static_cast<int>(code)}, {"error", why}});
}

}  // namespace

std::vector<RankRecord> Bootstrap::meet(const RankRecord& own) {
  own_ = own;
  store_.set(joined_key(own.rank), msgpack::encode(to_map(own, config_.size)));
  if (own.rank == 0) {
    try {
      return collect();
    } catch (const Error& error) {
      store_.set(kTable, error_record(error.code(), error.what()));
      throw;
    }
  }
  std::string bytes;
  try {
    bytes = store_.get(kTable, deadline_);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout) throw;
    const std::vector<int> absent = missing();
    throw Error(ErrorCode::timeout, absent.empty()
                                        ? "rank 0 did not tell who joined group " + config_.name +
                                              " within the timeout of " + duration_text(config_.timeout)
                                        : ranks_text(absent) + " did not join group " + config_.name +
                                              " within the timeout of " + duration_text(config_.timeout));
  }
  std::vector<RankRecord> records;
  const Value table = read_record(bytes, kTable);
  for (const Value& entry : table.at("ranks").as_array()) records.push_back(to_record(entry));
  if (static_cast<int>(records.size()) != config_.size) {
    throw Error(ErrorCode::protocol, "rank 0 counts " + std::to_string(records.size()) + " ranks in group " +
                                         config_.name + ", rank " + std::to_string(own.rank) + " counts " +
                                         std::to_string(config_.size));
  }
  return records;
}

/// Rank 0 reads everybody's record and publishes them as one: 2 reads a rank in place of as many as there are
/// ranks.
std::vector<RankRecord> Bootstrap::collect() {
  std::vector<RankRecord> records;
  Array table;
  for (int rank = 0; rank < config_.size; ++rank) {
    const std::string key = joined_key(rank);
    std::string bytes;
    try {
      bytes = store_.get(key, deadline_);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timeout) throw;
      const std::vector<int> absent = missing();
      std::vector<int> joined;
      for (int other = 0; other < config_.size; ++other) {
        if (std::find(absent.begin(), absent.end(), other) == absent.end()) joined.push_back(other);
      }
      throw Error(ErrorCode::timeout, ranks_text(absent.empty() ? std::vector<int>{rank} : absent) +
                                          " did not join group " + config_.name + " within the timeout of " +
                                          duration_text(config_.timeout) +
                                          " (joined: " + numbers_text(joined) + ")");
    }
    const Value value = read_record(bytes, key);
    if (value.at("rank") != Value(rank) || value.at("size") != Value(config_.size)) {
      throw Error(ErrorCode::protocol, "rank " + std::to_string(rank) + " of group " + config_.name +
                                           " counts " +
                                           std::to_string(value.at("size").as_int(INT64_MIN, INT64_MAX)) +
                                           " ranks, rank 0 counts " + std::to_string(config_.size));
    }
    records.push_back(to_record(value));
    table.push_back(value);
  }
  store_.set(kTable, msgpack::encode(Map{{"v", kVersion}, {"ranks", table}}));
  for (int rank = 0; rank < config_.size; ++rank) store_.remove(joined_key(rank));
  return records;
}

std::vector<int> Bootstrap::missing() {
  std::vector<int> result;
  for (int rank = 0; rank < config_.size; ++rank) {
    try {
      store_.get(joined_key(rank), Deadline::in(Milliseconds(10)));
    } catch (const Error&) {
      result.push_back(rank);
    }
  }
  return result;
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
      store_.set(key, msgpack::encode(Map{{"v", kVersion}, {"ranks", ranks}}));
    }
    std::vector<int> proven;
    if (claim.size() == 1 || own.front() == leader) {
      proven = claim.size() == 1 ? std::vector<int>{leader} : own;
    } else {
      const Value record = read_record(get_of(claim.front(), own_, store_, key, deadline_), key);
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

void Bootstrap::give_up(const Error& error) noexcept {
  try {
    store_.set(host_key_of(config_.rank), error_record(error.code(), error.what()));
  } catch (const std::exception&) {
    // The store is gone: the others run into their deadline.
  }
}

void Bootstrap::ask_why(const RankRecord& leader) {
  const std::string key = host_key_of(leader.rank);
  std::string bytes;
  try {
    bytes = get_of(leader, own_, store_, key, Deadline::in(Milliseconds(500)));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::peer_dead) throw;
    return;
  }
  read_record(bytes, key);
}

void Bootstrap::clean(const std::vector<std::vector<RankRecord>>& claimed) {
  store_.remove(kTable);
  for (const auto& claim : claimed) {
    if (claim.size() > 1) store_.remove(host_key_of(claim.front().rank));
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
