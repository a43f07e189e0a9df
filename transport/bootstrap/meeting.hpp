// The meeting in which a communicator is made: access to the rendezvous store, with waits that end early if
// the meeting cannot succeed.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/periods.hpp"
#include "transport/bootstrap/identity.hpp"
#include "transport/bootstrap/rank_record.hpp"
#include "transport/communicator.hpp"
#include "transport/explanation.hpp"

namespace vccl {

class FailureChannel;

/// A store whose waits end soon after another rank has announced that it cannot join, or has died. Deaths are
/// noticed of ranks on this machine once they have published their records, and of every rank that an earlier
/// communicator of this process knows to be dead (CommunicatorConfig::earlier).
///
/// Only the thread that makes the communicator may use it.
class Meeting final : public Store {
 public:
  Meeting(Store& store, const CommunicatorConfig& config, const Deadline& deadline)
      : store_(store),
        config_(config),
        names_(config.names()),
        deadline_(deadline),
        own_keys_(config.size > 1 ? "" : "alone/" + std::to_string(names_.in_job(config.rank)) + "/"),
        notices_(config.notices.get()) {}

  void set(const std::string& key, const std::string& value) override { store_.set(own_keys_ + key, value); }
  void remove(const std::string& key) override { store_.remove(own_keys_ + key); }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& value) override {
    return store_.compare_set(own_keys_ + key, expected, value);
  }
  /// Blocks until the key has a value, and returns the value. Throws Error(timeout), and what look() throws.
  std::string get(const std::string& key, const Deadline& deadline) override;
  /// Blocks like get() until the meeting's deadline, for a key that `rank` sets. `what` completes the text
  /// "rank 0 waited 30 s for rank 1 ...", for instance "to tell who joined".
  std::string await(int rank, const std::string& key, const char* what);
  /// Returns the value of a key, or nothing if the key has no value yet.
  std::optional<std::string> try_get(const std::string& key);
  bool has(const std::string& key) { return try_get(key).has_value(); }

  /// Proves that all ranks that meet here make the same group, and publishes this rank's record. Throws
  /// Error(mismatch) if another rank makes another group under the same prefix of the store.
  void join(const RankRecord& own);
  /// Call this when all ranks have joined, with their records.
  void know(const std::vector<RankRecord>& records);
  /// Call this when every rank has connected to its neighbours. From then on some ranks may have finished the
  /// meeting and left while others have not, so an ended process is no reason to give up any more.
  void all_connected() { watches_deaths_ = false; }

  /// Makes waits that last as long write a warning; 0: never.
  void warn_after(Milliseconds warn_after) { warning_.emplace(began_, deadline_, warn_after); }
  /// Lets every wait for the store call this as often as it looks: other ranks may need the links of a rank
  /// that waits. What it throws ends the wait.
  void serve_links(std::function<void()> serve) { serve_links_ = std::move(serve); }

  /// Checks the other ranks if the last check was base::kMeetingPeriod ago. Every wait of the meeting calls
  /// this. Throws the error that another rank announced, Error(peer_dead) if a rank has died,
  /// Error(peer_left) if a rank has left an earlier communicator of the group and its process has ended, and
  /// the failure of another communicator of the same group.
  void look();
  /// Call this when a peer closed its connection to this rank. Blocks for at most a second until the reason
  /// is known, and throws the reason. Returns if no reason becomes known.
  void look_for_reason();

  /// Announce an error to the ranks of the meeting whose keys begin with `prefix`, and return whether anybody
  /// has announced one there. They do not need a meeting of this rank.
  static void announce_to(Store& store, const std::string& prefix, const Error& error);
  static bool has_failed(Store& store, const std::string& prefix);
  /// Throws the contradiction that was found in the meeting of `config`, perhaps after it had succeeded.
  static void check_identity(Store& store, const CommunicatorConfig& config);

  /// Returns whether another rank has announced a failure. Every later exception of the meeting is then that
  /// failure.
  bool heard() const { return heard_; }

  /// Turns the reason for which this rank cannot join into the error that all ranks throw, and announces that
  /// error unless another rank has announced one. Call this in a catch block: it uses the exception that is
  /// being handled. Pass `failures` if there is shared memory, because the exception may be the failure
  /// recorded there, whose text names the rank that failed. Otherwise pass null.
  Error give_up(const FailureChannel* failures) noexcept;

  /// Returns the processes of the ranks on this machine that can be observed. May be called once.
  std::map<int, PeerProcess> take_processes() { return std::move(processes_); }

 private:
  void prove_identity();
  /// Throws the contradiction, after all ranks that it concerns can read it.
  [[noreturn]] void tell_contradiction(const MeetingIdentity& own, const MeetingIdentity& other);
  void look_now();
  void warn() const;
  void check_announced();
  void check_notices();
  void read_some_records();
  void check_deaths();
  void know(const RankRecord& record);
  Error own_error(const FailureChannel* failures) const;
  void announce(const Error& error) noexcept;

  Store& store_;
  const CommunicatorConfig& config_;
  const RankNames names_;
  const Deadline& deadline_;
  const Clock::time_point began_ = Clock::now();
  std::optional<WaitWarning> warning_;
  // What the keys of this meeting begin with. Groups of one rank may share a prefix with another group.
  const std::string own_keys_;
  NoticeBoard notices_;
  std::function<void()> serve_links_;  // empty while there are no links
  RankRecord own_;
  bool joined_ = false;
  bool all_known_ = false;
  bool watches_deaths_ = true;
  bool heard_ = false;  // whether another rank has announced a failure
  int next_record_ = 0;
  std::map<int, PeerProcess> processes_;
  Clock::time_point next_look_ = Clock::now() + base::kMeetingPeriod;
};

}  // namespace vccl
