#include "transport/claim.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <utility>

#include "base/fork.hpp"
#include "base/sealed_memory.hpp"
#include "base/text.hpp"
#include "transport/bootstrap/meeting.hpp"
#include "transport/system/machine.hpp"

namespace vccl {
namespace {

using msgpack::Value;

constexpr std::size_t kMarkBytes = 4096;

struct Token {
  std::string text = random_hex(16);
};

/// A random text that tells this process from every other one.
const std::string& process_token() {
  static base::OnePerProcess<Token> token;
  return token.get().text;
}

/// What the key of a rank's claims holds.
struct Claimant {
  std::uint64_t number = 0;
  std::string process;  // process_token()
  std::string machine, pid_space, host;
  std::int64_t pid = 0;
  std::string mark;  // part of the name of the page that shows that the claim is in use

  static Claimant own(std::uint64_t number, std::string mark) {
    return {number, process_token(), machine_key(), pid_namespace(), host_name(), getpid(), std::move(mark)};
  }
  std::string encode() const {
    return encode_record({{"number", number},
                          {"process", process},
                          {"machine", machine},
                          {"pid_space", pid_space},
                          {"host", host},
                          {"pid", pid},
                          {"mark", mark}});
  }
  static Claimant decode(const std::string& bytes) {
    const Value record = read_record(bytes, -1);
    return {record.at("number").as_uint(),    record.at("process").as_string(),
            record.at("machine").as_string(), record.at("pid_space").as_string(),
            record.at("host").as_string(),    record.at("pid").as_int(0, INT64_MAX),
            record.at("mark").as_string()};
  }
  std::string text() const { return base::text("process ", pid, " on host ", host); }
};

std::string prefix_of(const std::string& kind, std::uint64_t number) {
  return base::text(kind, "/", number, "/");
}

/// Returns whether the claim is in use, or nothing if that cannot be seen from here.
std::optional<bool> in_use(const Claimant& claimant) {
  if (claimant.machine != machine_key() || claimant.pid_space != pid_namespace()) return std::nullopt;
  const std::string folder = base::text("/proc/", claimant.pid);
  if (access(folder.c_str(), F_OK) != 0) return false;
  std::ifstream maps(folder + "/maps");
  if (!maps) return std::nullopt;  // for instance another user's process
  for (std::string line; std::getline(maps, line);) {
    if (line.find(claimant.mark) != std::string::npos) return true;
  }
  return false;
}

bool has(Store& store, const std::string& key) {
  try {
    store.get(key, Deadline::in(Milliseconds(0)));
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout) throw;
    return false;
  }
}

/// Returns whether the claimant's meeting has begun and neither succeeded nor failed.
bool still_meets(Store& store, const std::string& prefix, int rank) {
  return has(store, prefix + joined_key(rank)) && !Meeting::has_failed(store, prefix);
}

/// Returns a page that /proc shows with this name. Its descriptor is closed, and the page stays.
void* make_mark(const std::string& name) {
  const FileDescriptor file = make_shared_memory(name.c_str(), kMarkBytes);
  void* const page = mmap(nullptr, kMarkBytes, PROT_READ, MAP_SHARED, file.get(), 0);
  if (page == MAP_FAILED) throw_system("mapping the mark of a claim");
  return page;
}

}  // namespace

Claim::Claim(Store& store, const std::string& kind, const CommunicatorConfig& config) {
  const std::uint64_t rank = config.names().in_job(config.rank);
  const std::string mark = base::text("vccl-rank-", random_hex(8));
  // The mark is there before anybody can read of it. A rank that can have none claims its place all the same,
  // to tell the others there why it does not come.
  std::optional<Error> failure;
  try {
    mark_ = make_mark(mark);
  } catch (const Error& error) {
    failure.emplace(error.code(),
                    base::text("rank ", rank, " could not join group ", config.name, ": ", error.what()));
  }
  try {
    const std::string key = base::text(kind, "/rank_", rank);
    Claimant own = Claimant::own(1, mark);
    std::string before;
    while (true) {
      const std::string encoded = own.encode();
      std::string found = store.compare_set(key, before, encoded);
      if (found == encoded) break;
      const Claimant other = Claimant::decode(found);
      const std::string theirs = prefix_of(kind, other.number);
      if (other.process != own.process) {
        const std::optional<bool> used = in_use(other);
        if (used ? *used : still_meets(store, theirs, config.rank)) {
          const Error error(
              ErrorCode::mismatch,
              base::text("rank ", rank, " of group ", config.name, " is ", other.text(), " and also ",
                         own.text(),
                         ": two jobs use the same store, or one job gave the rank to two processes. "
                         "Give each job a store, port or prefix of its own, and each process a rank."));
          Meeting::announce_to(store, theirs, error);
          throw error;
        }
      }
      own.number = other.number + 1;
      before = std::move(found);
    }
    prefix_ = prefix_of(kind, own.number);
    if (failure) {
      Meeting::announce_to(store, prefix_, *failure);
      throw *failure;
    }
  } catch (...) {
    if (mark_) munmap(mark_, kMarkBytes);
    throw;
  }
}

void check_identity(Store& meeting, const CommunicatorConfig& config) {
  Meeting::check_identity(meeting, config);
}

Claim::~Claim() {
  munmap(mark_, kMarkBytes);
}

}  // namespace vccl
