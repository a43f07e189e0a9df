#include "transport/rank_record.hpp"

#include "transport/handover.hpp"

namespace vccl {

PeerProcess process_of(const RankRecord& them, const RankRecord& us) {
  const auto pid = static_cast<pid_t>(them.pid);
  if (us.machine != them.machine || us.pid_space != them.pid_space)
    return PeerProcess(FileDescriptor(), pid, false);
  return us.pid == them.pid ? PeerProcess() : PeerProcess(open_pidfd(pid), pid, true);
}

Error died(const RankRecord& them, const RankRecord& us) {
  return Error(ErrorCode::peer_dead, "rank " + std::to_string(them.rank) + " (pid " +
                                         std::to_string(them.pid) + ") died while rank " +
                                         std::to_string(us.rank) +
                                         " shared memory with it to form the group");
}

std::string get_of(const RankRecord& them, const RankRecord& us, Store& store, const std::string& key,
                   const Deadline& deadline) {
  const PeerProcess process = process_of(them, us);
  while (true) {
    // Looked at before the store: what they set while they lived is there, then.
    const bool dead = process.dead();
    const Deadline look = Deadline::in(dead ? Milliseconds(0) : kPeerLook);
    const bool last = look.at >= deadline.at;
    try {
      return store.get(key, last ? deadline : look);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timeout) throw;
      if (dead) throw died(them, us);
      if (last) throw;
    }
  }
}

}  // namespace vccl
