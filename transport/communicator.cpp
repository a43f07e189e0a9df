#include "transport/communicator.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>

#include "transport/bootstrap.hpp"
#include "transport/host.hpp"
#include "transport/interface.hpp"
#include "transport/mapped_link.hpp"
#include "transport/mapped_peers.hpp"
#include "transport/message_engine.hpp"
#include "transport/message_links.hpp"
#include "transport/remote_links.hpp"

namespace vccl {
namespace {

const char kAliveToken[] = "token";

void check_config(const CommunicatorConfig& config) {
  if (config.size < 1 || config.rank < 0 || config.rank >= config.size) {
    throw Error(ErrorCode::invalid, "rank " + std::to_string(config.rank) + " of a group of " +
                                        std::to_string(config.size) + " ranks");
  }
  if (config.regions.size() > kMaxRegions) {
    throw Error(ErrorCode::invalid, std::to_string(config.regions.size()) + " regions were given; at most " +
                                        std::to_string(kMaxRegions) + " can be shared");
  }
}

class GroupCommunicator final : public Communicator {
 public:
  GroupCommunicator(Store& store, const CommunicatorConfig& config);
  ~GroupCommunicator() override;

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }
  const std::string& name() const override { return group_.name; }
  int ring_position() const override { return position_; }
  int ring_rank(int position) const override { return ring_.at(static_cast<std::size_t>(position)); }
  int host_count() const override { return static_cast<int>(hosts_.size()); }
  int host_of(int rank) const override { return host_of_.at(static_cast<std::size_t>(rank)); }
  Outbox& right() override { return *right_; }
  Inbox& left() override { return *left_; }
  Peers* peers() override { return peers_ ? &*peers_ : nullptr; }
  const std::string& algorithm_choice() const override { return algorithm_choice_; }
  Messages& messages() override;
  void add_region(const Region& region) override;

  void fail(ErrorCode code, const std::string& what) noexcept override;
  void abort(const std::string& reason) noexcept override;
  bool failed() const noexcept override { return group_.failure().happened(); }
  void check() override;
  std::uint64_t sequence() const noexcept override { return group_.sequence.load(std::memory_order_relaxed); }

 private:
  void begin(const Announcement& announcement, const Deadline& deadline) override;
  void finish() override;
  void cut_short() noexcept override;

  void join(Store& store, const CommunicatorConfig& config, const Environment& environment);
  void order_ranks(const std::vector<std::vector<int>>& hosts);
  void connect(Store& store, const std::vector<RankRecord>& records, const std::string& interface);
  void meet();
  void count_cores();

  Group group_;
  std::optional<Waiter> waiter_;
  std::optional<Gate> gate_;
  std::optional<MappedPeers> peers_;  // where all ranks are on this host
  std::string algorithm_choice_;
  std::vector<std::vector<int>> hosts_;
  std::vector<int> host_of_;
  std::vector<int> ring_;
  int position_ = 0;
  std::unique_ptr<RemoteLinks> remote_;  // where a neighbour is on another host
  std::unique_ptr<Outbox> right_;
  std::unique_ptr<Inbox> left_;
  MappedInbox* mapped_left_ = nullptr;
  int left_index_ = 0;
  std::atomic<bool> busy_{false};
  std::mutex messages_mutex_;
  std::unique_ptr<MessagePort> remote_messages_;  // where there are other hosts
  std::unique_ptr<MessageEngine> messages_;
  const pid_t owner_ = getpid();
};

GroupCommunicator::GroupCommunicator(Store& store, const CommunicatorConfig& config) {
  check_config(config);
  const Environment environment = read_environment();
  group_.name = config.name;
  group_.rank = config.rank;
  group_.size = config.size;
  group_.describe = config.describe;
  group_.log = Log(environment.debug, config.rank, config.name);
  algorithm_choice_ = config.algorithms.empty() ? environment.algorithms : config.algorithms;
  group_.regions = config.regions;
  group_.deadline = Deadline::in(config.timeout);
  join(store, config, environment);
}

void GroupCommunicator::join(Store& store, const CommunicatorConfig& config, const Environment& environment) {
  Bootstrap bootstrap(store, config, group_.deadline);
  Listener listener;
  const std::vector<RankRecord> records = bootstrap.meet(
      {config.rank, machine_key(), config.host_id.empty() ? environment.host_id : config.host_id, getpid(),
       pid_namespace(), listener.name()});
  const auto claimed = claimed_hosts(records);
  const auto& candidates = *std::find_if(claimed.begin(), claimed.end(), [&](const auto& claim) {
    return std::any_of(claim.begin(), claim.end(), [&](auto& record) { return record.rank == config.rank; });
  });
  const bool leads = candidates.front().rank == config.rank;
  try {
    group_.host = form_host_group(store, candidates, config.rank, config.regions, listener, group_.deadline);
  } catch (const Error& error) {
    if (leads) {
      bootstrap.give_up(error);
    } else {
      bootstrap.ask_why(candidates.front());
    }
    throw;
  }
  order_ranks(bootstrap.agree_on_hosts(claimed, group_.host.ranks));
  waiter_.emplace(group_);
  gate_.emplace(group_, *waiter_);
  if (host_count() == 1) peers_.emplace(group_, *waiter_, *gate_);
  group_.own_line().cores = UsableCores::of_this_process();
  group_.own_line().state.store(RankState::present);
  try {
    connect(store, records, environment.socket_interface);
    meet();
    count_cores();
  } catch (const Error& error) {
    group_.fail(error.code(), error.what());
    throw;
  }
  if (config.rank == 0) {
    bootstrap.clean(claimed);
    if (remote_messages_) MessageLinks::clean(store);
  }
  group_.log.info("joined " + std::to_string(group_.size) + " ranks on " + std::to_string(host_count()) +
                  " host(s) at position " + std::to_string(position_) + " of the ring " +
                  numbers_text(ring_) + "; " + std::to_string(group_.host.ranks.size()) + " ranks on " +
                  std::to_string(group_.cores) + " usable cores here");
}

void GroupCommunicator::order_ranks(const std::vector<std::vector<int>>& hosts) {
  hosts_ = hosts;
  host_of_.assign(static_cast<std::size_t>(group_.size), 0);
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    for (int rank : hosts_[host]) {
      host_of_[static_cast<std::size_t>(rank)] = static_cast<int>(host);
      if (rank == group_.rank) {
        position_ = static_cast<int>(ring_.size());
        if (hosts_[host] != group_.host.ranks) {
          throw Error(ErrorCode::bootstrap, "the ranks of group " + group_.name +
                                                " disagree about who shares a host with rank " +
                                                std::to_string(group_.rank));
        }
      }
      ring_.push_back(rank);
    }
  }
}

void GroupCommunicator::connect(Store& store, const std::vector<RankRecord>& records,
                                const std::string& interface) {
  const int count = static_cast<int>(ring_.size());
  const int right = ring_[static_cast<std::size_t>((position_ + 1) % count)];
  const int left = ring_[static_cast<std::size_t>((position_ + count - 1) % count)];
  const auto& local = group_.host.ranks;
  const auto index_of = [&](int rank) {
    const auto found = std::find(local.begin(), local.end(), rank);
    return found == local.end() ? -1 : static_cast<int>(found - local.begin());
  };
  const int right_index = index_of(right);
  left_index_ = index_of(left);
  const auto address = [&] {
    const bool one_machine = std::all_of(records.begin(), records.end(),
                                         [&](auto& record) { return record.machine == records[0].machine; });
    return interface_address(interface, one_machine);
  };
  if (right_index < 0 || left_index_ < 0) {
    remote_ = std::make_unique<RemoteLinks>(group_);
    group_.pump = [this] { remote_->pump(); };
    group_.spread_failure = [this] { remote_->spread_failure(); };
    remote_->connect(store, left_index_ < 0 ? left : -1, right_index < 0 ? right : -1, address());
  }
  if (hosts_.size() > 1) remote_messages_ = std::make_unique<MessageLinks>(group_, store, address());
  if (right_index < 0) {
    right_ = std::make_unique<RemoteOutbox>(*remote_);
  } else {
    right_ = std::make_unique<MappedOutbox>(group_, *waiter_, right_index);
  }
  if (left_index_ < 0) {
    left_ = std::make_unique<RemoteInbox>(*remote_);
  } else {
    auto mapped = std::make_unique<MappedInbox>(group_, *waiter_, left_index_);
    mapped_left_ = mapped.get();
    left_ = std::move(mapped);
  }
}

/// A token goes round the ring twice: back at the start for the first time it says that everybody has come
/// this far and every link works, for the second time that everybody knows.
void GroupCommunicator::meet() {
  const auto pass_on = [&] {
    std::copy(std::begin(kAliveToken), std::end(kAliveToken), reinterpret_cast<char*>(right_->reserve()));
    right_->commit(sizeof kAliveToken);
  };
  const auto receive = [&] {
    const auto* token = reinterpret_cast<const char*>(left_->take_committed(sizeof kAliveToken));
    const bool right_one = std::equal(std::begin(kAliveToken), std::end(kAliveToken), token);
    left_->release();
    if (!right_one) throw Error(ErrorCode::protocol, "the ring's first message is not what it has to be");
  };
  for (int round = 0; round < 2; ++round) {
    if (position_ == 0) pass_on();
    receive();
    if (position_ != 0) pass_on();
  }
}

/// When all have met. Ranks may be bound to cores of their own: what counts is the cores of all of them. And
/// only what they wrote, so that all come to the same result: of ranks that disagreed, one would do a share
/// that another has claimed.
void GroupCommunicator::count_cores() {
  const HostGroup& host = group_.host;
  std::vector<UsableCores> cores;
  for (int i = 0; i < static_cast<int>(host.ranks.size()); ++i) {
    // Pairs with the store in join(), which comes after the cores.
    (void)read(host.line(i).state);
    cores.push_back(host.line(i).cores);
  }
  group_.crowded = are_crowded(cores);
  group_.cores = all_of(cores).count();
}

GroupCommunicator::~GroupCommunicator() {
  // A forked child holds a copy of the object but is no rank: it must not speak for its parent.
  if (getpid() != owner_) {
    (void)messages_.release();
    (void)remote_messages_.release();
    (void)remote_.release();
    return;
  }
  // Said before the messages that are under way end: a peer that still reads such a message looks here when
  // it is through.
  group_.own_line().state.store(RankState::left);
  for (int i = 0; i < static_cast<int>(group_.host.ranks.size()); ++i) {
    wake(group_.host.line(i));
    wake_messages(group_.host.messages().line(static_cast<std::size_t>(i)), false);
  }
  messages_.reset();
  remote_messages_.reset();
  if (remote_) remote_->close();
}

Messages& GroupCommunicator::messages() {
  std::lock_guard lock(messages_mutex_);
  if (!messages_) messages_ = std::make_unique<MessageEngine>(group_, remote_messages_.get());
  return *messages_;
}

void GroupCommunicator::add_region(const Region& region) {
  if (getpid() != owner_) return;  // a forked child is no rank
  for (const Region& known : group_.regions) {
    if (known.base == region.base) return;
  }
  RegionTable& table = group_.host.messages().regions(static_cast<std::size_t>(group_.host.index));
  if (!group_.added_regions.add(region, table, kMaxRegions - group_.regions.size())) {
    group_.log.info("has " + std::to_string(kMaxRegions) +
                    " regions already: messages in a further one are staged");
  }
}

void GroupCommunicator::check() {
  if (!failed()) return;
  if (remote_) remote_->spread_failure();
  group_.check();
}

void GroupCommunicator::fail(ErrorCode code, const std::string& what) noexcept {
  group_.fail(code, what);
}

void GroupCommunicator::abort(const std::string& reason) noexcept {
  fail(ErrorCode::aborted, "rank " + std::to_string(group_.rank) + " aborted group " + group_.name +
                               (reason.empty() ? "" : ": " + reason));
}

void GroupCommunicator::begin(const Announcement& announcement, const Deadline& deadline) {
  check();
  if (busy_.exchange(true)) {
    throw Error(ErrorCode::invalid,
                "group " + group_.name + " already runs an operation: a communicator runs one at a time");
  }
  group_.signature = announcement.signature;
  group_.window = {announcement.window, kind_of(group_, announcement.window)};
  group_.deadline = deadline;
  group_.sequence.store(group_.sequence.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  try {
    // Announced before the host's own meeting, so that it travels meanwhile; compared as the answers come.
    if (remote_) remote_->begin();
    if (peers_) peers_->begin(announcement);
    gate_->pass(announcement);
    if (mapped_left_) {
      mapped_left_->begin(is_inline(announcement)
                              ? PeerWindow()
                              : gate_->window_of(left_index_, &OperationSlot::Windows::ring));
    }
  } catch (const Error& error) {
    fail(error.code(), error.what());
    if (peers_) peers_->withdraw();
    if (remote_) remote_->spread_failure();
    busy_ = false;
    throw;
  }
}

void GroupCommunicator::finish() {
  right_->drain();
  if (peers_) peers_->finish();
  if (remote_) remote_->match();
  busy_ = false;
}

void GroupCommunicator::cut_short() noexcept {
  fail(ErrorCode::aborted,
       "rank " + std::to_string(group_.rank) + " gave up " + group_.operation_text() + " before its end");
  if (peers_) peers_->withdraw();
  if (remote_) remote_->close();
  busy_ = false;
}

}  // namespace

std::unique_ptr<Communicator> Communicator::create(Store& store, const CommunicatorConfig& config) {
  return std::make_unique<GroupCommunicator>(store, config);
}

const std::string& Communicator::algorithm_choice() const {
  static const std::string kNone;
  return kNone;
}

Operation::Operation(Communicator& communicator, const Announcement& announcement, const Deadline& deadline)
    : communicator_(communicator) {
  communicator_.begin(announcement, deadline);
}

Operation::~Operation() {
  if (!finished_) communicator_.cut_short();
}

void Operation::finish() {
  communicator_.finish();
  finished_ = true;
}

}  // namespace vccl
