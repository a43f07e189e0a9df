#include "transport/bootstrap/rank_record.hpp"

#include "base/text.hpp"
#include "transport/bootstrap/unix_socket.hpp"

namespace vccl {

using msgpack::Value;

std::string joined_key(int rank) {
  return base::text("joined/", rank);
}

std::string encode(const RankRecord& record, int size) {
  return encode_record({{"rank", record.rank},
                        {"size", size},
                        {"machine", record.machine},
                        {"host_id", record.host_id},
                        {"pid", record.pid},
                        {"pid_space", record.pid_space},
                        {"socket", record.socket},
                        {"shares_memory", record.shares_memory},
                        {"process", record.process}});
}

RankRecord to_rank_record(const Value& value) {
  return {static_cast<int>(value.at("rank").as_int(0, INT32_MAX)),
          value.at("machine").as_string(),
          value.at("host_id").as_string(),
          value.at("pid").as_int(0, INT64_MAX),
          value.at("pid_space").as_string(),
          value.at("socket").as_string(),
          value.at("shares_memory").as_bool(),
          value.at("process").as_uint()};
}

PeerProcess process_of(const RankRecord& them, const RankRecord& us) {
  const auto pid = static_cast<pid_t>(them.pid);
  if (us.machine != them.machine || us.pid_space != them.pid_space)
    return PeerProcess(FileDescriptor(), pid, false);
  return us.pid == them.pid ? PeerProcess() : PeerProcess(open_pidfd(pid), pid, true);
}

Error died(const RankRecord& them, const RankRecord& us, const RankNames& names) {
  return Error(ErrorCode::peer_dead,
               base::text(names.rank(them.rank, base::text("pid ", them.pid)), " died while ",
                          names.rank(us.rank), " shared memory with it to form the group"));
}

}  // namespace vccl
