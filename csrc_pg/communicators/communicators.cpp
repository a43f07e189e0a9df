#include "csrc_pg/communicators/communicators.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/fork.hpp"
#include "base/schedule.hpp"
#include "base/text.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/runtime/host_sharing.hpp"
#include "csrc_pg/collectives/call.hpp"
#include "csrc_pg/collectives/selector.hpp"
#include "csrc_pg/communicators/distinct_cards.hpp"
#include "csrc_pg/dumps/own_flight_recorder.hpp"
#include "csrc_pg/explanations/other_hosts.hpp"
#include "faults/faults.hpp"
#include "transport/variables.hpp"

namespace vccl {
namespace {

bool before(const c10::Device& a, const c10::Device& b) {
  return std::pair(a.type(), a.index()) < std::pair(b.type(), b.index());
}

std::shared_ptr<vdev::Stream> make_stream(c10::Device device, bool high_priority, const std::string& group) {
  const int priority = high_priority ? -1 : 0;
  if (device.is_cpu()) return std::make_shared<vdev::Stream>(-1, 0, priority, base::text("vccl cpu ", group));
  return vdev::card(device.index())
      .new_stream(priority, base::text("vccl ", vdev::device_name(), ":", device.index(), " ", group));
}

Region region_of(const vdev::Arena& arena) {
  return {arena.fd(), arena.base(), arena.capacity()};
}

Region region_of(c10::Device device) {
  return region_of(vdev::card(device.index()).arena());
}

constexpr Milliseconds kPatienceForCopies{10'000};

bool concerns_caller_alone(const Error& error) {
  return error.code() == ErrorCode::invalid || error.code() == ErrorCode::unsupported;
}

// Counts the groups of this process that stage CPU tensors. A forked child has none of its parent's groups.
std::atomic<int>& staging_groups() {
  static base::OnePerProcess<std::atomic<int>> one;
  return one.get();
}

/// Returns the call that makes a group together with the settings in which the ranks of the group must agree
/// (MeetingIdentity::call).
std::string with_settings(const std::string& call, bool strict) {
  return base::text(call, ", VCCL_STRICT=", strict ? "nccl" : "0");
}

}  // namespace

Communicators::Communicators(c10::intrusive_ptr<c10d::Store> store, Identity identity,
                             std::vector<Relative> relatives)
    : store_(std::move(store)),
      identity_(std::move(identity)),
      names_(identity_.name, identity_.global_ranks),
      relatives_(std::move(relatives)),
      by_device_(&before),
      cancelled_(std::make_shared<std::atomic<bool>>(false)),
      to_abort_(std::make_shared<GroupToAbort>(*this)) {}

Communicators::~Communicators() {
  if (!inherited()) to_abort_->forget();
  close(Milliseconds(0));
}

bool Communicators::inherited() const {
  return made_.inherited();
}

// Throws if `device` cannot be used. One failed communicator makes the group unusable, because the ranks no
// longer agree on what was done. The caller holds mutex_.
void Communicators::check_usable(c10::Device device) const {
  if (!closed_.empty()) throw Error(ErrorCode::aborted, closed_);
  if (identity_.knows_failure && !device.is_cpu()) {
    // An operation on a communicator that has failed fails at once, in its task.
    const auto own = by_device_.find(device);
    const bool fails =
        own != by_device_.end() && own->second.made && own->second.made->communicator()->failed();
    if (fails && !identity_.knows_failure()) return;
  }
  for (const auto& [_, entry] : by_device_)
    if (entry.made) entry.made->communicator()->check();
}

void Communicators::check_process() const {
  if (inherited())
    throw Error(ErrorCode::aborted,
                base::text("the process group ", identity_.name, " belongs to process ", process_,
                           ", from which this one was forked: make one in each process that takes part"));
}

std::shared_ptr<MessageLane> Communicators::lane(c10::Device device, Milliseconds timeout) {
  const auto common = get(c10::kCPU, timeout);
  std::lock_guard lock(mutex_);
  auto& entry = by_device_[device];
  if (!entry.lane) {
    // Peers read and write a card's memory in place. The CPU memory's region, if it is shared, was handed
    // over when the group was made.
    if (!device.is_cpu()) common->communicator()->add_region(region_of(device));
    entry.lane = std::make_shared<MessageLane>(device, common->communicator(), to_abort_);
  }
  return entry.lane;
}

void Communicators::show_meetings_in(std::shared_ptr<Recording> recording) {
  const std::lock_guard lock(mutex_);
  recording_ = std::move(recording);
}

std::shared_ptr<void> Communicators::announce(c10::Device device, const std::string& call) const {
  if (device.is_cpu()) return nullptr;
  std::lock_guard lock(mutex_);
  const auto found = by_device_.find(c10::kCPU);
  if (found == by_device_.end() || !found->second.made) return nullptr;
  std::shared_ptr<Communicator> common = found->second.made->communicator();
  // The communicator and the recording must live until what shows the meeting is over, which goes first.
  struct Meeting {
    std::shared_ptr<Communicator> common;
    std::shared_ptr<Recording> recording;
    std::shared_ptr<void> announced, recorded;
  };
  auto meeting = std::make_shared<Meeting>();
  meeting->announced = common->announce_meeting(
      base::text(call, " on ", device.str(), ", the first of group ", identity_.name, " there"));
  if (recording_) meeting->recorded = recording_->meeting();
  meeting->common = std::move(common);
  meeting->recording = recording_;
  return meeting;
}

std::shared_ptr<DeviceCommunicator> Communicators::get(c10::Device device, Milliseconds timeout,
                                                       const std::string& call) {
  check_process();
  const auto find = [&]() -> std::shared_ptr<DeviceCommunicator> {
    std::lock_guard lock(mutex_);
    check_usable(device);
    auto& entry = by_device_[device];
    if (entry.failure) throw *entry.failure;
    return entry.made;
  };
  if (auto found = find()) return found;

  std::lock_guard making(making_);
  if (auto found = find()) return found;  // another thread was faster
  // The communicator for the CPU is made with the group, which is a phase of its own.
  const auto strikes = device.is_cpu() ? nullptr : faults::begin_phase("first_use", identity_.name);
  try {
    const auto meeting = announce(device, call);
    auto made = make(device, timeout);
    if (strikes) strikes->strike(faults::Moment::after);
    std::lock_guard lock(mutex_);
    // If the group was aborted or closed meanwhile, the new communicator is destroyed here, which tells the
    // peers.
    check_usable(device);
    by_device_[device].made = made;
    return made;
  } catch (const Error& error) {
    if (vdev::interruption_pending()) abort(error.what());
    // This rank's attempts and the peers' are paired by their count (StoreAdapter). Another attempt by this
    // rank alone would pair with the wrong one, so the failure is final for this group.
    std::lock_guard lock(mutex_);
    by_device_[device].failure = error;
    throw;
  }
}

std::shared_ptr<DeviceCommunicator> Communicators::make(c10::Device device, Milliseconds timeout) {
  std::shared_ptr<vdev::Stream> stream;
  CommunicatorConfig config;
  config.name = identity_.name;
  config.rank = identity_.rank;
  config.size = identity_.size;
  config.global_ranks = identity_.global_ranks;
  config.call = with_settings(identity_.call, identity_.distinct_cards);
  config.device = device.str();
  config.describe = &describe;
  config.describe_refusal = &describe_nonfinite;
  config.timeout = timeout;
  std::string prefix;
  // This runs while the ranks meet, so that all ranks learn at once of a rank that cannot do its part.
  config.prepare = [&](CommunicatorConfig& prepared) {
    check_algorithm_choice(read_variables().algorithms);
    if (device.is_cpu() && identity_.prepare) identity_.prepare();
    if (!device.is_cpu()) {
      if (identity_.distinct_cards) claim_card(prefix, device);
      prepared.regions.push_back(region_of(device));
    } else if (const auto* shared = vdev::host_memory()) {
      prepared.regions.push_back(region_of(shared->arena()));
    } else if (identity_.size > 1 && !stages_cpu_tensors_.exchange(true)) {
      staging_groups().fetch_add(1);
    }
    stream = make_stream(device, identity_.high_priority, identity_.name);
  };
  config.connect_store = connect_store();
  if (device.is_cpu() && identity_.call == "init_process_group" && own_flight_recorder().enabled())
    config.answer = &answer_host_question;
  auto known = relatives(true);
  known.insert(known.end(), relatives_.begin(), relatives_.end());
  config.earlier = std::make_shared<Relatives>(std::move(known), identity_.global_ranks);
  std::unique_ptr<Claim> claim;
  base::schedule::point(base::schedule::Point::meeting);
  const base::schedule::Outside elsewhere;
  prefix = begin_meeting(device, config, claim);
  std::shared_ptr<Communicator> communicator = Communicator::create(*adapter(prefix), config);
  if (device.is_cpu()) {
    id_ = communicator->id();
    prefix_ = prefix;
  }
  return std::make_shared<DeviceCommunicator>(device, std::move(communicator), std::move(stream), to_abort_,
                                              std::move(claim));
}

// Each rank writes its number under its card. A rank that finds another number there has come second.
void Communicators::claim_card(const std::string& prefix, c10::Device device) const {
  const auto own = std::to_string(identity_.rank);
  const auto owner = adapter(prefix)->compare_set(base::text("card/", card_key(device)), "", own);
  if (owner == own) return;
  throw duplicate_card(names_, identity_.rank, std::stoi(owner), device);
}

std::vector<c10::DeviceIndex> Communicators::used_cards() const {
  std::lock_guard lock(mutex_);
  std::vector<c10::DeviceIndex> cards;
  for (const auto& [device, entry] : by_device_)
    if (!device.is_cpu() && (entry.made || entry.lane)) cards.push_back(device.index());
  return cards;
}

std::shared_ptr<StoreAdapter> Communicators::adapter(const std::string& prefix) const {
  return std::make_shared<StoreAdapter>(
      store_, prefix, base::text(names_.rank(identity_.rank), ", joining group ", identity_.name),
      cancelled_);
}

std::shared_ptr<StoreAdapter> Communicators::notices(const std::string& origin) const {
  if (origin.empty()) return nullptr;
  return std::make_shared<StoreAdapter>(
      store_of_job(store_), base::text("vccl/notices/", origin, "/"),
      base::text(names_.rank(identity_.rank), ", joining group ", identity_.name), cancelled_);
}

/// Returns nothing for a store that is not made for questions that come again and again.
ConnectStore Communicators::connect_store() const {
  const auto store = store_of_job(store_);
  if (!c10::dynamic_intrusive_pointer_cast<c10d::TCPStore>(store)) return {};
  const auto never = std::make_shared<const std::atomic<bool>>(false);
  const auto who = base::text(names_.rank(identity_.rank), ", asking what other hosts wait for");
  return [store, never, who] {
    return std::make_unique<StoreAdapter>(store->clone(), "vccl/waits/", who, never);
  };
}

/// Returns the prefix of the keys of the meeting. The meeting for the CPU comes first and proves which group
/// the ranks make. A meeting for a card has the identity of the CPU's communicator in its keys, so no other
/// rank can come there. Before it, this rank looks whether another group was made under the name of this one
/// meanwhile. A card's number may differ from rank to rank, so the ranks count their meetings.
std::string Communicators::begin_meeting(c10::Device device, CommunicatorConfig& config,
                                         std::unique_ptr<Claim>& claim) {
  if (!device.is_cpu()) {
    check_identity(*adapter(prefix_), config);
    return base::text("vccl/", id_, "/vdev/", ++cards_, "/");
  }
  const auto job = base::text("vccl/", identity_.origin, identity_.origin.empty() ? "" : "/");
  config.notices = notices(identity_.origin);
  claim = std::make_unique<Claim>(*adapter(job), "cpu", config);
  return job + claim->prefix();
}

void Communicators::agree_on_call(const std::string& kind, const CommonCall& call) {
  check_process();
  int number;
  {
    std::lock_guard lock(calls_mutex_);
    number = ++calls_[kind];
  }
  const auto board = notices(id_);
  vccl::agree_on_call(*adapter(prefix_), base::text("calls/", kind, "/", number),
                      identity_.global_ranks[static_cast<std::size_t>(identity_.rank)], identity_.name, call,
                      board.get());
}

std::vector<std::shared_ptr<MessageLane>> Communicators::lanes() const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<MessageLane>> result;
  for (const auto& [device, entry] : by_device_)
    if (entry.lane) result.push_back(entry.lane);
  return result;
}

std::vector<std::shared_ptr<DeviceCommunicator>> Communicators::all() const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<DeviceCommunicator>> result;
  for (const auto& [device, entry] : by_device_)
    if (entry.made) result.push_back(entry.made);
  return result;
}

std::vector<Relative> Communicators::relatives(bool of_same_group) const {
  std::vector<Relative> result;
  for (const auto& entry : all())
    result.push_back({entry->communicator(), identity_.global_ranks, of_same_group});
  return result;
}

void Communicators::abort(const std::string& reason) noexcept {
  if (inherited()) return;
  cancelled_->store(true, std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    if (closed_.empty()) closed_ = reason;
  }
  for (const auto& entry : all()) entry->communicator()->abort(reason);
}

void Communicators::close(Milliseconds patience) noexcept {
  if (inherited()) {
    // Destroying the slots would tell the parent's peers that it left, and a lock may be held by a thread
    // that does not exist in the child.
    for (auto& [device, entry] : by_device_) new PerDevice(std::move(entry));
    return;
  }
  if (stages_cpu_tensors_.exchange(false)) staging_groups().fetch_sub(1);
  closing_.store(true, std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    if (closed_.empty())
      closed_ = "the process group was destroyed: make a new one with init_process_group()";
  }
  const auto entries = all();
  // All waits share one deadline, so that a group with many cards does not wait many times.
  const auto deadline = Deadline::in(patience);
  for (const auto& entry : entries) {
    const auto last = entry->last();
    const auto left = std::chrono::nanoseconds(deadline.at - Clock::now()).count();
    if (!last.reached() && !(left > 0 && last.wait_for(left)))
      entry->communicator()->abort("the process group was destroyed while a collective was under way");
  }
  for (const auto& lane : lanes())
    if (!lane->under_way()->wait_for_none(deadline))
      lane->communicator()->abort("the process group was destroyed while a message was under way");
  // Receivers may still come for copies of sends that are complete. Nobody waits for them, so not for long.
  const auto short_while = Deadline::in(std::min(patience, kPatienceForCopies));
  for (const auto& lane : lanes()) lane->copies_under_way()->wait_for_none(short_while);
  cancelled_->store(true, std::memory_order_relaxed);
  tell_peers_why();
  decltype(by_device_) gone(&before);
  {
    std::lock_guard lock(mutex_);
    gone.swap(by_device_);
  }
  // `gone` is destroyed here. A stream's destructor runs what is queued, which ends at once because it is
  // aborted, and joins its worker.
}

/// Tells the peers why this rank leaves the group. Peers that wait for this rank, in this group or another,
/// then raise the reason and not only that the rank has left. Call this before the group is left.
void Communicators::tell_peers_why() noexcept {
  const auto entries = all();
  const auto cause = failure();
  if (cause && !concerns_caller_alone(*cause)) {
    // One failed communicator makes the whole group fail.
    for (const auto& entry : entries) entry->communicator()->fail(cause->code(), cause->what());
    // A program that gives up leaves its other groups next, so their peers get the reason, too. An abort is
    // this rank's own decision.
    if (cause->code() != ErrorCode::aborted)
      for (const auto& relative : relatives_)
        if (const auto other = relative.communicator.lock()) other->leave_because(cause->what());
  }
  // Groups that were made from this one gave their reason only to the communicators that existed at that
  // time. This passes the reason on to all.
  for (const auto& told : entries)
    for (const auto& entry : entries)
      entry->communicator()->leave_because(told->communicator()->leave_reason());
}

int Communicators::that_stage_cpu_tensors() {
  return staging_groups().load();
}

std::optional<Error> Communicators::failure() const {
  std::optional<Error> found;
  std::lock_guard lock(mutex_);
  for (const auto& [device, entry] : by_device_) {
    if (entry.failure) return entry.failure;
    if (!entry.made || (found && found->code() != ErrorCode::aborted)) continue;
    try {
      entry.made->communicator()->check();
    } catch (const Error& error) {
      found = error;  // an abort may be a consequence; another communicator may know the cause
    }
  }
  return found;
}

}  // namespace vccl
