// The communicator of a group of ranks on one or more hosts.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/fork.hpp"
#include "transport/bootstrap/meeting.hpp"
#include "transport/bootstrap/rank_record.hpp"
#include "transport/bootstrap/unix_socket.hpp"
#include "transport/communicator.hpp"
#include "transport/deadlock_watch.hpp"
#include "transport/host/mapped_link.hpp"
#include "transport/host/mapped_peers.hpp"
#include "transport/links/host_ring.hpp"
#include "transport/links/host_watch.hpp"
#include "transport/links/remote_links.hpp"
#include "transport/messages/message_engine.hpp"
#include "transport/messages/message_links.hpp"
#include "transport/questions/answerer.hpp"
#include "transport/state/ring_order.hpp"
#include "transport/variables.hpp"

namespace vccl {

/// Puts the parts of the transport together. Communicator says what each member does.
class GroupCommunicator final : public Communicator {
 public:
  GroupCommunicator(Store& store, const CommunicatorConfig& config);
  ~GroupCommunicator() override;

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }
  const std::string& name() const override { return group_.name; }
  const RankNames& names() const override { return group_.names; }
  const std::string& id() const override { return id_; }
  int ring_position() const override { return ring_.position(); }
  int ring_rank(int position) const override { return ring_.rank_at(position); }
  int host_count() const override { return ring_.host_count(); }
  int host_of(int rank) const override { return ring_.host_of(rank); }
  std::vector<AnsweringRank> answering_ranks() const override { return answering_; }
  Outbox& right() override { return *right_; }
  Inbox& left() override { return *left_; }
  Peers& host_peers() override { return *peers_; }
  Peers* all_peers() override { return host_count() == 1 ? &*peers_ : nullptr; }
  HostRing* host_ring() override { return across_.get(); }
  const std::string& algorithm_choice() const override { return algorithm_choice_; }
  Messages& messages() override;
  void add_region(const Region& region) override;

  void fail(ErrorCode code, const std::string& what) noexcept override;
  void abort(const std::string& reason) noexcept override;
  bool failed() const noexcept override { return failures_->happened(); }
  void check() override;
  void look_around() noexcept override;
  std::optional<RankEnd> end_of(int rank) const noexcept override;
  void leave_because(const std::string& reason) noexcept override;
  std::string leave_reason() const override;
  std::shared_ptr<void> announce_meeting(const std::string& what) override {
    return std::make_shared<LastingWait>(group_, what);
  }
  std::uint64_t sequence() const noexcept override { return operation_.sequence(); }
  bool busy() const noexcept override { return operation_.under_way(); }

 private:
  void begin(const Announcement& announcement, const Deadline& deadline) override;
  void finish() override;
  void cut_short() noexcept override;

  void join(Meeting& meeting, const CommunicatorConfig& config);
  void know_other_hosts(const std::vector<RankRecord>& records);
  void share_memory(Meeting& meeting, const CommunicatorConfig& config, Listener& listener,
                    const std::vector<RankRecord>& candidates);
  void connect(Meeting& meeting, const std::vector<RankRecord>& records, const Variables& variables,
               const AnswerQuestion& answer);
  void link_messages(Meeting& meeting, const LinkSettings& settings, const AnswerQuestion& answer);
  void meet(Meeting& meeting);
  void count_cores();
  /// Calls a member of all links to other hosts.
  void each_link(void (RemoteLinks::*member)()) {
    if (remote_) (*remote_.*member)();
    if (across_) across_->each_own([&](RemoteLinks& links) { (links.*member)(); });
  }
  /// Does the same unless an operation is under way.
  void between_operations(void (RemoteLinks::*member)()) {
    if (!operation_.borrow()) return;
    each_link(member);
    operation_.give_back();
  }

  Group group_;
  CurrentOperation operation_;
  std::optional<FailureChannel> failures_;  // once the control memory is mapped
  RingOrder ring_;
  std::optional<Waiter> waiter_;
  std::optional<OperationStart> start_;
  std::optional<MappedPeers> peers_;
  std::string algorithm_choice_;
  std::unique_ptr<RemoteLinks> remote_;     // if a neighbour is on another host
  std::unique_ptr<RemoteHostRing> across_;  // if there are other hosts
  std::unique_ptr<Outbox> right_;
  std::unique_ptr<Inbox> left_;
  MappedInbox* mapped_left_ = nullptr;
  int left_index_ = 0;
  mutable std::mutex leave_reason_mutex_;
  AddedRegions added_regions_;  // what add_region() was called with
  std::mutex messages_mutex_;
  std::unique_ptr<MessagePort> remote_messages_;  // if there are other hosts
  std::unique_ptr<MessageEngine> messages_;
  std::unique_ptr<Answerer> answerer_;  // if there are other hosts, and CommunicatorConfig::answer
  std::vector<AnsweringRank> answering_;
  std::unique_ptr<HostWatch> host_watch_;  // if there are other hosts
  // This is destroyed first, because until then the watch of this process reads the control memory.
  std::optional<Watched> watched_;
  std::string id_;
  const base::ProcessMark made_;
};

}  // namespace vccl
