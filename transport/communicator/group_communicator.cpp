#include "transport/communicator/group_communicator.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "base/cores.hpp"
#include "base/text.hpp"
#include "transport/bootstrap/bootstrap.hpp"
#include "transport/bootstrap/form_host_group.hpp"
#include "transport/connections/link_security.hpp"
#include "transport/links/link_descriptors.hpp"
#include "transport/state/lost_ranks.hpp"
#include "transport/support/error_text.hpp"
#include "transport/system/descriptor_limit.hpp"
#include "transport/system/machine.hpp"

namespace vccl {
namespace {

const char kAliveToken[] = "token";

/// Returns the number that the first digits of a communicator's id stand for.
std::uint64_t number_of(const std::string& id) {
  std::uint64_t number = 0;
  std::from_chars(id.data(), id.data() + std::min<std::size_t>(id.size(), 16), number, 16);
  return number;
}

}  // namespace

GroupCommunicator::GroupCommunicator(Store& store, const CommunicatorConfig& given)
    : operation_(group_, Deadline::in(given.timeout)) {
  CommunicatorConfig config = given;
  group_.name = config.name;
  group_.device = config.device;
  group_.rank = config.rank;
  group_.size = config.size;
  group_.names = config.names();
  group_.describe = config.describe;
  group_.describe_refusal = config.describe_refusal;
  group_.earlier = config.earlier;
  group_.connect_store = config.connect_store;
  config.check_rank();
  Meeting meeting(store, config, operation_.deadline());
  try {
    if (config.prepare) config.prepare(config);
    join(meeting, config);
    failures_->set_meeting(nullptr, nullptr);
  } catch (...) {
    // The failure is announced in shared memory and in the store, because some ranks wait in one and some in
    // the other.
    const Error error = meeting.give_up(failures_ ? &*failures_ : nullptr);
    if (failures_) failures_->fail(error.code(), error.what());
    throw error;
  }
}

void GroupCommunicator::join(Meeting& meeting, const CommunicatorConfig& config) {
  const Variables variables = read_variables();
  group_.log = Log(variables.debug, group_.names.in_job(config.rank), config.name);
  group_.warn_after = variables.warn_after;
  meeting.warn_after(variables.warn_after);
  algorithm_choice_ = config.algorithms.empty() ? variables.algorithms : config.algorithms;
  group_.regions = config.regions;
  config.check_regions();

  Bootstrap bootstrap(meeting, config, operation_.deadline());
  Listener listener;
  const std::vector<RankRecord> records = bootstrap.meet(
      {config.rank, machine_key(), config.host_id.empty() ? variables.host_id : config.host_id, getpid(),
       pid_namespace(), listener.name(), !config.regions.empty(), DeadlockWatch::of_this_process().token()});
  id_ = bootstrap.id();
  group_.id = number_of(id_);
  const auto claimed = claimed_hosts(records);
  share_memory(meeting, config, listener,
               *std::find_if(claimed.begin(), claimed.end(), [&](const auto& claim) {
                 return std::any_of(claim.begin(), claim.end(),
                                    [&](auto& record) { return record.rank == config.rank; });
               }));
  failures_.emplace(group_);
  ring_ = RingOrder(bootstrap.agree_on_hosts(claimed, group_.host.ranks), config.rank);
  if (ring_.ranks_of_host(host_of(config.rank)) != group_.host.ranks) {
    throw Error(ErrorCode::bootstrap,
                base::text("the ranks of group ", group_.name, " disagree about who shares a host with ",
                           group_.own_text()));
  }
  know_other_hosts(records);
  waiter_.emplace(group_, operation_, *failures_);
  start_.emplace(group_, operation_, *failures_, *waiter_);
  peers_.emplace(group_, operation_, *failures_, *waiter_, *start_);
  group_.own_line().cores = base::UsableCores::of_this_process();
  watched_.emplace(group_, *failures_);
  group_.own_line().state.store(RankState::present);
  failures_->set_meeting([&meeting] { meeting.look(); }, [&meeting] { meeting.look_for_reason(); });
  connect(meeting, records, variables, config.answer);
  meet(meeting);
  each_link(&RemoteLinks::settle);
  count_cores();
  group_.elsewhere = meeting.take_processes();
  std::erase_if(group_.elsewhere, [&](const auto& entry) {
    return std::ranges::find(group_.host.ranks, entry.first) != group_.host.ranks.end();
  });
  if (host_count() > 1) {
    host_watch_ = std::make_unique<HostWatch>(
        group_, operation_, *failures_, [this] { between_operations(&RemoteLinks::listen); },
        [this](int rank) { return end_of(rank); });
  }
  if (config.rank == 0) {
    bootstrap.clean(claimed);
    if (remote_messages_) MessageLinks::clean(meeting);
  }
  group_.log.info(base::text("joined ", group_.size, " ranks on ", host_count(), " host(s) at position ",
                             ring_.position(), " of the ring ", numbers_text(ring_.ranks()), "; ",
                             group_.host.ranks.size(), " ranks on ", group_.cores, " usable cores here"));
}

void GroupCommunicator::know_other_hosts(const std::vector<RankRecord>& records) {
  for (const RankRecord& record : records)
    if (!std::ranges::binary_search(group_.host.ranks, record.rank))
      group_.far.emplace(record.rank, record.process);
  if (!group_.far.empty()) group_.traffic = std::make_shared<Traffic>(group_.size);
}

void GroupCommunicator::share_memory(Meeting& meeting, const CommunicatorConfig& config, Listener& listener,
                                     const std::vector<RankRecord>& candidates) {
  try {
    group_.host = form_host_group(meeting, group_.names, candidates, config.rank, config.regions, listener,
                                  operation_.deadline(), [&] { meeting.look(); });
  } catch (const Error& error) {
    if (meeting.heard()) throw;
    // A rank hung up or died. It may have announced why it could not go on, or other ranks may have died
    // before.
    if (error.code() == ErrorCode::bootstrap || error.code() == ErrorCode::peer_dead)
      meeting.look_for_reason();
    if (error.code() != ErrorCode::timeout) throw;
    throw Error(ErrorCode::timeout,
                base::text(error.what(), " while group ", config.name,
                           " was put together. Look for a rank that is stuck or slow, or raise "
                           "the timeout."));
  }
}

void GroupCommunicator::connect(Meeting& meeting, const std::vector<RankRecord>& records,
                                const Variables& variables, const AnswerQuestion& answer) {
  const int right = ring_.right(), left = ring_.left();
  const auto& local = group_.host.ranks;
  const auto index_of = [&](int rank) {
    const auto found = std::find(local.begin(), local.end(), rank);
    return found == local.end() ? -1 : static_cast<int>(found - local.begin());
  };
  const int right_index = index_of(right);
  left_index_ = index_of(left);
  LinkSettings settings;
  if (right_index < 0 || left_index_ < 0) {
    remote_ = std::make_unique<RemoteLinks>(group_, operation_, *failures_);
  }
  if (host_count() > 1) {
    const bool mappable = std::ranges::all_of(records, [](auto& record) { return record.shares_memory; });
    across_ =
        std::make_unique<RemoteHostRing>(group_, operation_, *failures_, ring_, mappable, remote_.get());
    settings = LinkSettings::of(group_.rank, records, variables);
    check_link_security(variables.link_security, group_.log);
    require_link_descriptors(group_, across_->own_links() + (left_index_ < 0),
                             across_->own_links() + (right_index < 0), static_cast<bool>(answer));
  }
  if (remote_ || across_) {
    failures_->set_links([this] { each_link(&RemoteLinks::pump); },
                         [this] { between_operations(&RemoteLinks::listen); },
                         [this] { each_link(&RemoteLinks::spread_failure); });
    meeting.serve_links([this] {
      failures_->receive();
      failures_->check();
    });
  }
  if (across_) across_->watch_all();
  if (remote_) {
    remote_->connect(meeting, left_index_ < 0 ? left : -1, right_index < 0 ? right : -1, settings);
  }
  if (across_) {
    across_->connect(meeting, settings);
  }
  if (host_count() > 1) {
    link_messages(meeting, settings, answer);
  }
  if (right_index < 0) {
    right_ = std::make_unique<RemoteOutbox>(*remote_);
  } else {
    right_ = std::make_unique<MappedOutbox>(group_.host, operation_, *waiter_, right_index);
  }
  if (left_index_ < 0) {
    left_ = std::make_unique<RemoteInbox>(*remote_);
  } else {
    auto mapped = std::make_unique<MappedInbox>(group_.host, *waiter_, left_index_);
    mapped_left_ = mapped.get();
    left_ = std::move(mapped);
  }
}

/// Where this rank answers questions is told along with where it listens for messages.
void GroupCommunicator::link_messages(Meeting& meeting, const LinkSettings& settings,
                                      const AnswerQuestion& answer) {
  std::optional<ListenerRecord> own;
  if (answer) {
    const auto ranks = static_cast<std::size_t>(group_.size) - group_.host.ranks.size();
    answerer_ = std::make_unique<Answerer>(settings, ranks, answer, group_.log);
    own = answerer_->record();
  }
  auto links = std::make_unique<MessageLinks>(group_, *failures_, meeting, settings, own);
  const auto add = [&](int rank, const ListenerRecord& record) {
    answering_.push_back(answering_rank(static_cast<int>(group_.names.in_job(rank)), record));
  };
  if (own) add(group_.rank, *own);
  for (const auto& [rank, record] : links->answerers()) add(rank, record);
  group_.host_names = links->host_names();
  remote_messages_ = std::move(links);
}

/// Sends a token round the ring twice. When the token is back at the start for the first time, every rank has
/// come this far and every link works. When it is back for the second time, every rank knows that.
void GroupCommunicator::meet(Meeting& meeting) {
  const auto pass_on = [&] {
    std::copy(std::begin(kAliveToken), std::end(kAliveToken), reinterpret_cast<char*>(right_->reserve()));
    right_->commit(sizeof kAliveToken);
  };
  const auto receive = [&] {
    const auto* token = reinterpret_cast<const char*>(left_->take_committed(sizeof kAliveToken));
    const bool right_one = std::equal(std::begin(kAliveToken), std::end(kAliveToken), token);
    left_->release();
    if (!right_one) {
      throw Error(ErrorCode::protocol, base::text(group_.rank_text(ring_.left()), " sent ", group_.own_text(),
                                                  " what no rank sends, in ", operation_.text(),
                                                  ": the ring's first message is not what it has to be"));
    }
  };
  for (int round = 0; round < 2; ++round) {
    if (round == 1) meeting.all_connected();
    if (ring_.position() == 0) pass_on();
    receive();
    if (ring_.position() != 0) pass_on();
  }
}

/// Call this when all ranks have met. Ranks may be bound to cores of their own, so the cores of all ranks
/// count. Only what the ranks have written counts, so that all ranks come to the same result. If ranks
/// disagreed, one of them would do a work item that another has claimed.
void GroupCommunicator::count_cores() {
  const HostGroup& host = group_.host;
  std::vector<base::UsableCores> cores;
  for (int i = 0; i < static_cast<int>(host.ranks.size()); ++i) {
    // This load pairs with the store in join(), which comes after the cores were written.
    (void)read(host.line(i).state);
    cores.push_back(host.line(i).cores);
  }
  group_.oversubscribed = base::are_oversubscribed(cores);
  group_.cores = base::all_of(cores).count();
}

GroupCommunicator::~GroupCommunicator() {
  // A forked child holds a copy of the object but is no rank, so it must not act for its parent.
  if (made_.inherited()) {
    (void)host_watch_.release();
    (void)answerer_.release();
    (void)messages_.release();
    (void)remote_messages_.release();
    (void)remote_.release();
    (void)across_.release();
    watched_->forget();
    return;
  }
  host_watch_.reset();
  // The state is set before messages under way end: a peer that still reads such a message checks the state
  // when it has finished reading.
  group_.own_line().state.store(RankState::left);
  for (int i = 0; i < static_cast<int>(group_.host.ranks.size()); ++i) {
    wake(group_.host.line(i));
    wake_messages(group_.host.messages().line(static_cast<std::size_t>(i)), false);
  }
  messages_.reset();
  remote_messages_.reset();
  // A neighbour that hears on one link that this rank leaves waits for nothing more on the others.
  each_link(&RemoteLinks::await_touch);
  each_link(&RemoteLinks::close);
  answerer_.reset();  // comes last, because an answer that is being given may take a while
}

Messages& GroupCommunicator::messages() {
  std::lock_guard lock(messages_mutex_);
  if (!messages_)
    messages_ = std::make_unique<MessageEngine>(group_, *failures_, added_regions_, remote_messages_.get());
  return *messages_;
}

void GroupCommunicator::add_region(const Region& region) {
  if (made_.inherited()) return;  // a forked child is no rank
  for (const Region& known : group_.regions) {
    if (known.base == region.base) return;
  }
  RegionTable& table = group_.host.messages().regions(static_cast<std::size_t>(group_.host.index));
  if (!added_regions_.add(region, table, kMaxRegions - group_.regions.size())) {
    group_.log.info(
        base::text("has ", kMaxRegions, " regions already: messages in a further one are staged"));
  }
}

void GroupCommunicator::check() {
  if (!failed()) return;
  each_link(&RemoteLinks::spread_failure);
  failures_->check();
}

void GroupCommunicator::fail(ErrorCode code, const std::string& what) noexcept {
  failures_->fail(code, what);
}

void GroupCommunicator::abort(const std::string& reason) noexcept {
  fail(ErrorCode::aborted, base::text(group_.own_text(), " aborted group ", group_.name,
                                      reason.empty() ? "" : base::text(": ", reason)));
}

void GroupCommunicator::look_around() noexcept {
  if (!made_.inherited()) between_operations(&RemoteLinks::look_around);
}

std::optional<RankEnd> GroupCommunicator::end_of(int rank) const noexcept {
  auto end = group_.end_of(rank);
  if (made_.inherited()) return end;
  if (!end && remote_) end = remote_->end_of_peer(rank);
  if (!end && across_) end = across_->end_of_own_peer(rank);
  const auto elsewhere = group_.elsewhere.find(rank);
  if (!end && elsewhere != group_.elsewhere.end() && LostRanks(group_).contains(rank))
    end = RankEnd{RankEnd::How::lost, elsewhere->second.pid(), true, group_.host_name(rank)};
  return end;
}

void GroupCommunicator::leave_because(const std::string& reason) noexcept {
  if (made_.inherited()) return;  // a forked child is no rank
  std::lock_guard lock(leave_reason_mutex_);
  LeaveReason& own = group_.own_line().leave_reason;
  if (own.length == 0) own.write(reason);
}

std::string GroupCommunicator::leave_reason() const {
  std::lock_guard lock(leave_reason_mutex_);
  return group_.own_line().leave_reason.read();
}

void GroupCommunicator::begin(const Announcement& announcement, const Deadline& deadline) {
  check();
  if (!operation_.begin(announcement, deadline)) {
    throw Error(
        ErrorCode::invalid,
        base::text("group ", group_.name, " already runs an operation: a communicator runs one at a time"));
  }
  try {
    peers_->begin(announcement);
    // The remote announcement goes out before the ranks of this host meet, so that it travels meanwhile. The
    // signatures are compared as the neighbours' announcements arrive.
    if (across_) across_->begin(announcement.route);
    start_->pass(announcement);
    if (mapped_left_) {
      mapped_left_->begin(is_inline(announcement)
                              ? PeerWindow()
                              : start_->window_of(left_index_, &OperationSlot::Windows::ring));
    }
  } catch (const Error& error) {
    fail(error.code(), error.what());
    // Other hosts hear of the failure first, because a withdrawal may take seconds.
    each_link(&RemoteLinks::spread_failure);
    peers_->withdraw();
    operation_.end();
    throw;
  }
}

void GroupCommunicator::finish() {
  right_->drain();
  if (across_) across_->drain();
  peers_->check_withdrawn();
  peers_->finish();
  if (across_) across_->match();
  operation_.end();
}

void GroupCommunicator::cut_short() noexcept {
  fail(ErrorCode::aborted, base::text(group_.own_text(), " gave up ", operation_.text(), " before its end"));
  // The links come first: libzmq may read memory of other ranks of this host, which wait for the withdrawal.
  each_link(&RemoteLinks::close);
  peers_->withdraw();
  operation_.end();
}

}  // namespace vccl
