#include "csrc_pg/communicators.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/fork.hpp"
#include "csrc_device/runtime/host_sharing.hpp"
#include "csrc_pg/collectives/algorithm_choice.hpp"
#include "csrc_pg/collectives/types.hpp"
#include "csrc_pg/store_adapter.hpp"

namespace vccl {

vdev::Event DeviceCommunicator::enqueue(const std::shared_ptr<vdev::Stream>& stream, vdev::Task task,
                                        vdev::Start start) {
  if (last_stream_ != stream.get()) stream->wait(last_);
  stream->enqueue(std::move(task), start);
  last_ = stream->record();
  last_stream_ = stream.get();
  return last_;
}

vdev::Event DeviceCommunicator::launch(vdev::Task task, vdev::Start start,
                                       const std::vector<vdev::Event>& after) {
  std::lock_guard lock(order_);
  if (!device_.is_cpu()) {
    const auto current = vdev::current_stream(device_.index());
    if (current != stream_) stream_->wait(current->record());
  }
  for (const auto& event : after) stream_->wait(event);
  return enqueue(stream_, std::move(task), start);
}

vdev::Event DeviceCommunicator::launch_on_current_stream(vdev::Task task) {
  std::lock_guard lock(order_);
  return enqueue(vdev::current_stream(device_.index()), std::move(task), vdev::Start::kByWaiter);
}

vdev::Event DeviceCommunicator::last() const {
  std::lock_guard lock(order_);
  return last_;
}

namespace {

bool before(const c10::Device& a, const c10::Device& b) {
  return std::pair(a.type(), a.index()) < std::pair(b.type(), b.index());
}

std::shared_ptr<vdev::Stream> make_stream(c10::Device device, bool high_priority) {
  const int priority = high_priority ? -1 : 0;
  if (device.is_cpu()) return std::make_shared<vdev::Stream>(-1, 0, priority, "vccl cpu");
  return vdev::card(device.index()).new_stream(priority, "vccl vdev:" + std::to_string(device.index()));
}

Region region_of(const vdev::Arena& arena) {
  return {arena.fd(), arena.base(), arena.capacity()};
}

Region region_of(c10::Device device) {
  return region_of(vdev::card(device.index()).arena());
}

// Of this process: a forked child has none of its parent's groups.
struct StagingGroups {
  std::mutex mutex;
  int generation = vdev::fork_generation();
  int count = 0;

  int add(int change) {
    std::lock_guard lock(mutex);
    if (std::exchange(generation, vdev::fork_generation()) != vdev::fork_generation()) count = 0;
    return count += change;
  }
};

StagingGroups& staging_groups() {
  static auto* groups = new StagingGroups;  // never destroyed: groups may outlive static destructors
  return *groups;
}

}  // namespace

Communicators::Communicators(c10::intrusive_ptr<c10d::Store> store, Identity identity)
    : process_(getpid()),
      store_(std::move(store)),
      identity_(identity),
      slots_(&before),
      cancelled_(std::make_shared<std::atomic<bool>>(false)) {}

Communicators::~Communicators() {
  close(Milliseconds(0));
}

bool Communicators::inherited() const {
  return getpid() != process_;
}

// Under mutex_. One failed communicator spends the group: the ranks no longer agree on what was done.
void Communicators::check_usable() const {
  if (!closed_.empty()) throw Error(ErrorCode::aborted, closed_);
  for (const auto& [device, slot] : slots_)
    if (slot.made) slot.made->communicator()->check();
}

void Communicators::check_process(const std::string& name) const {
  if (inherited())
    throw Error(ErrorCode::aborted,
                "the process group " + name + " belongs to process " + std::to_string(process_) +
                    ", from which this one was forked: make one in each process that takes part");
}

std::shared_ptr<MessageLane> Communicators::lane(c10::Device device, const std::string& name,
                                                 Milliseconds timeout) {
  const auto common = get(c10::kCPU, name, timeout);
  std::lock_guard lock(mutex_);
  auto& slot = slots_[device];
  if (!slot.lane) {
    // Peers read and write a card's memory in place. The CPU's, where it is shared, came with the group.
    if (!device.is_cpu()) common->communicator()->add_region(region_of(device));
    slot.lane = std::make_shared<MessageLane>(device, common->communicator());
  }
  return slot.lane;
}

std::shared_ptr<DeviceCommunicator> Communicators::get(c10::Device device, const std::string& name,
                                                       Milliseconds timeout) {
  check_process(name);
  const auto find = [&]() -> std::shared_ptr<DeviceCommunicator> {
    std::lock_guard lock(mutex_);
    check_usable();
    auto& slot = slots_[device];
    if (slot.failure) throw *slot.failure;
    return slot.made;
  };
  if (auto found = find()) return found;

  std::lock_guard making(making_);
  if (auto found = find()) return found;  // another thread was faster
  try {
    auto made = make(device, name, timeout);
    std::lock_guard lock(mutex_);
    check_usable();  // aborted or closed meanwhile: the new one goes with this frame, which tells the peers
    slots_[device].made = made;
    return made;
  } catch (const Error& error) {
    // Ours and the peers' attempts are counted in pairs (StoreAdapter): trying again here alone would only
    // pair with the wrong one, so the failure is final for this group.
    std::lock_guard lock(mutex_);
    slots_[device].failure = error;
    throw;
  }
}

std::shared_ptr<DeviceCommunicator> Communicators::make(c10::Device device, const std::string& name,
                                                        Milliseconds timeout) {
  CommunicatorConfig config;
  config.name = name;
  config.rank = identity_.rank;
  config.size = identity_.size;
  config.describe = &describe;
  config.timeout = timeout;
  if (!device.is_cpu()) {
    config.regions.push_back(region_of(device));
  } else if (const auto* shared = vdev::host_memory()) {
    config.regions.push_back(region_of(shared->arena()));
  } else if (identity_.size > 1 && !stages_cpu_tensors_.exchange(true)) {
    staging_groups().add(1);
  }
  // Cards have different numbers on different ranks: their kind is what the ranks have in common.
  StoreAdapter store(store_, device.is_cpu() ? "cpu" : "vdev", identity_.rank, cancelled_);
  std::shared_ptr<Communicator> communicator = Communicator::create(store, config);
  // Not before: a rank that is alone in having a bad one would keep the others waiting for it.
  check_algorithm_choice(*communicator);
  return std::make_shared<DeviceCommunicator>(device, std::move(communicator),
                                              make_stream(device, identity_.high_priority));
}

std::vector<std::shared_ptr<MessageLane>> Communicators::lanes() const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<MessageLane>> result;
  for (const auto& [device, slot] : slots_)
    if (slot.lane) result.push_back(slot.lane);
  return result;
}

std::vector<std::shared_ptr<DeviceCommunicator>> Communicators::all() const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<DeviceCommunicator>> result;
  for (const auto& [device, slot] : slots_)
    if (slot.made) result.push_back(slot.made);
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
    // Destroying would tell the parent's peers that it left; and a lock may be held by a thread that is not
    // here.
    for (auto& [device, slot] : slots_) new Slot(std::move(slot));
    return;
  }
  if (stages_cpu_tensors_.exchange(false)) staging_groups().add(-1);
  {
    std::lock_guard lock(mutex_);
    if (closed_.empty())
      closed_ = "the process group was destroyed: make a new one with init_process_group()";
  }
  const auto entries = all();
  // One patience for all, so that a group with many cards does not wait many times.
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
  cancelled_->store(true, std::memory_order_relaxed);
  decltype(slots_) gone(&before);
  {
    std::lock_guard lock(mutex_);
    gone.swap(slots_);
  }
  // Here `gone` goes: a stream's destructor runs what it still has (aborted, hence at once) and joins its
  // worker.
}

int Communicators::that_stage_cpu_tensors() {
  return staging_groups().add(0);
}

std::optional<Error> Communicators::failure() const {
  std::optional<Error> found;
  std::lock_guard lock(mutex_);
  for (const auto& [device, slot] : slots_) {
    if (slot.failure) return slot.failure;
    if (!slot.made || (found && found->code() != ErrorCode::aborted)) continue;
    try {
      slot.made->communicator()->check();
    } catch (const Error& error) {
      found = error;  // an abort is what follows: another communicator may know the cause
    }
  }
  return found;
}

}  // namespace vccl
