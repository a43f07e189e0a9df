#include "diagnosis/jobs/unstarted.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/files.hpp"
#include "base/process.hpp"
#include "base/text.hpp"

namespace vccl {
namespace {

constexpr std::size_t kMostInText = 4;

/// What a process was started with. A fork has its parent's: what it sets itself does not show.
struct Environment {
  std::string rank, port;

  explicit Environment(pid_t pid) {
    std::ifstream file(base::text("/proc/", pid, "/environ"), std::ios::binary);
    for (std::string line; std::getline(file, line, '\0');) {
      const std::string_view entry = line;
      if (entry.starts_with("RANK=")) rank = entry.substr(5);
      if (entry.starts_with("MASTER_PORT=")) port = entry.substr(12);
    }
  }
};

/// Returns the processes of this user that `launchers` have started, with their parents.
std::map<pid_t, pid_t> children_of(const std::set<pid_t>& launchers) {
  std::map<pid_t, pid_t> children;
  base::for_each_entry("/proc", [&](int folder, const char* name) {
    const auto pid = base::process_number(name);
    if (!pid) return;
    const pid_t parent = base::status_of(*pid).parent;
    if (!launchers.contains(parent)) return;
    struct stat facts{};
    if (::fstatat(folder, name, &facts, 0) == 0 && facts.st_uid == ::getuid()) children.emplace(*pid, parent);
  });
  return children;
}

int number_in(const std::string& text) {
  int number = -1;
  const auto end = text.data() + text.size();
  return std::from_chars(text.data(), end, number).ptr == end && number >= 0 ? number : -1;
}

/// Returns the rank that the process was started as, or -1 if that is not known.
int rank_of(const Environment& own, const Environment& launcher) {
  return own.rank == launcher.rank ? -1 : number_in(own.rank);
}

}  // namespace

void find_unstarted(Job& job, const std::set<pid_t>& launchers, std::chrono::milliseconds sample) {
  std::set<pid_t> known;
  std::set<std::string> ports;
  for (const auto& [number, rank] : job.ranks) {
    if (rank.far) continue;
    known.insert(rank.pid);
    if (rank.activity != Activity::gone) ports.insert(Environment(rank.pid).port);
  }
  std::vector<std::unique_ptr<ActivityWatch>> watches;
  for (const auto& [pid, parent] : children_of(launchers)) {
    if (known.contains(pid)) continue;
    const Environment own(pid);
    const int rank = rank_of(own, Environment(parent));
    // A launcher may have started another job as well.
    if (rank >= 0 && (!ports.contains(own.port) || job.ranks.contains(rank))) continue;
    job.unstarted.push_back({pid, rank, Activity::sleeps});
    watches.push_back(std::make_unique<ActivityWatch>(pid));
  }
  if (!watches.empty()) std::this_thread::sleep_for(sample);
  for (std::size_t i = 0; i < watches.size(); ++i) job.unstarted[i].activity = watches[i]->look();
  // A zombie shows no environment any more.
  std::erase_if(job.unstarted,
                [](const UnstartedProcess& process) { return process.activity == Activity::gone; });
}

std::string whereabouts_of_unstarted(const Job& job, int rank) {
  for (const UnknownRanks& unknown : job.unknown) {
    if (std::ranges::find(unknown.ranks, rank) == unknown.ranks.end()) continue;
    return unknown.silent ? base::text("is on host ", unknown.host, ", where nobody answers")
                          : base::text("has no process on host ", unknown.host,
                                       ": it has ended, or records nothing (VCCL_RECORDER_SIZE=0)");
  }
  const auto own = std::ranges::find(job.unstarted, rank, &UnstartedProcess::rank);
  if (own != job.unstarted.end()) {
    const bool stopped = own->activity == Activity::stopped || own->activity == Activity::traced;
    return base::text("has made no group yet; its process ", own->pid, " ", stopped ? "is " : "",
                      name_of(own->activity), " (py-spy dump --pid ", own->pid, " shows where)");
  }
  std::string pids;
  std::size_t named = 0;
  for (const UnstartedProcess& process : job.unstarted) {
    if (process.rank >= 0 || named == kMostInText) continue;
    pids += base::text(named++ ? ", " : "", process.pid);
  }
  if (named > 0) {
    return base::text("has made no group yet; it may be one of these processes of the same launcher: ", pids,
                      " (py-spy dump --pid shows where one is)");
  }
  return "has no process here: it has ended, has not begun, or runs on another host or as another user";
}

}  // namespace vccl
