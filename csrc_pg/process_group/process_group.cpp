#include "csrc_pg/process_group/process_group.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include "base/text.hpp"
#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/torch/gil.hpp"
#include "csrc_device/torch/streams.hpp"
#include "csrc_pg/arguments/checks.hpp"
#include "csrc_pg/arguments/torch_types.hpp"
#include "csrc_pg/dumps/own_spool.hpp"
#include "csrc_pg/explanations/other_hosts.hpp"
#include "csrc_pg/handles/after_failure.hpp"
#include "csrc_pg/handles/callback_pool.hpp"
#include "csrc_pg/operations/errors.hpp"
#include "csrc_pg/operations/faults_of_call.hpp"
#include "csrc_pg/operations/profiler_names.hpp"
#include "csrc_pg/operations/program_checks.hpp"
#include "csrc_pg/tasks/captured_collective.hpp"
#include "csrc_pg/tasks/collective_task.hpp"
#include "csrc_pg/tasks/watched_operation.hpp"
#include "transport/deadlock_watch.hpp"
#include "transport/variables.hpp"

namespace vccl {

using vdev::WithoutGil;

namespace {

using std::chrono::milliseconds;

// Holds the groups of the process that still have communicators, for shutdown_all().
struct Living {
  std::mutex mutex;
  std::set<ProcessGroupVccl*> groups;
};

Living& living() {
  static auto* all = new Living;  // never destroyed: groups may outlive static destructors
  return *all;
}

// Returns the group's description if a person gave one, otherwise the name that torch numbers the group with.
std::string name_from(const Options& options) {
  if (!options.group_desc.empty() && options.group_desc != "undefined") return options.group_desc;
  return options.group_name.empty() ? "unnamed" : options.group_name;
}

std::vector<std::uint64_t> ranks_from(const Options& options, int size) {
  if (static_cast<int>(options.global_ranks_in_group.size()) == size) return options.global_ranks_in_group;
  std::vector<std::uint64_t> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

ProcessGroupVccl::ProcessGroupVccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                   c10::intrusive_ptr<Options> options,
                                   const std::vector<c10::intrusive_ptr<ProcessGroupVccl>>& relatives)
    : Backend(rank, size),
      store_(std::move(store)),
      options_(std::move(options)),
      name_(name_from(*options_)),
      nccl_(with_torch_errors([&] { return is_strict_for(options_->stands_for); }),
            RankNames(name_, ranks_from(*options_, size)), rank),
      timeout_(options_->timeout),
      communicators_(
          store_,
          {name_, rank, size, options_->is_high_priority_stream, ranks_from(*options_, size), options_->call,
           options_->origin, nccl_.on(), [this] { begin_recording(); },
           nccl_.on() ? [this] { return !failures_->standing().empty(); } : std::function<bool()>()},
          communicators_of(relatives)) {
  init();
  WithoutGil without_gil;
  const auto strikes = faults::begin_phase(options_->call == "init_process_group" ? "init" : "new_group",
                                           options_->group_name, options_->group_desc);
  // Messages need this communicator between any two ranks, while the other ranks may do something else for
  // long.
  with_torch_errors([&] { communicators_.get(c10::kCPU, timeout_.load()); });
  record_process();
  if (options_->call == "init_process_group") {
    const auto communicator = communicators_.get(c10::kCPU, timeout_.load())->communicator();
    held_records_.hold(*communicator);
    know_answering_ranks(id(), *communicator);
  }
  if (program_checks().order && !options_->group_name.empty())
    order_ = std::make_shared<GroupOrder>(options_->group_name, ranks_from(*options_, size_),
                                          options_->call == "init_process_group");
  {
    std::lock_guard lock(living().mutex);
    living().groups.insert(this);
  }
  if (strikes) strikes->strike(faults::Moment::after);
}

// The group is in the recorder while it is made, so that a reader sees a rank that waits for the others. The
// recorder has been there since the first group; a value that has become wrong since is an error all the
// same.
void ProcessGroupVccl::begin_recording() {
  if (recording_) return;
  read_recorder_variables();
  checks_nan_ = read_check_variables().nan_inputs;
  FlightGroup group;
  put_text(group.name, options_->group_name.empty() ? group_name() : options_->group_name);
  put_text(group.description, options_->group_desc);
  group.rank = static_cast<std::uint32_t>(rank_);
  group.set_ranks(ranks_from(*options_, size_));
  recording_ = std::make_shared<Recording>(group);
  communicators_.show_meetings_in(recording_);
  record_process();
  dump_requests_ = std::make_unique<DumpRequests>();
  begin_record_if_asked();
}

// The process has its rank from the job's first group. `id` is known once that group is made. A group that
// knows of no default group, and of no ranks but its own, is a job by itself: torchft makes one for each
// quorum, and the processes of one may have been in different ones before.
void ProcessGroupVccl::record_process() {
  auto& recorder = recording_->recorder();
  auto process = recorder.process();
  const auto ranks = ranks_from(*options_, size_);
  std::uint64_t expected = 0;
  const bool is_job = options_->call == "init_process_group" ||
                      (options_->origin.empty() && std::ranges::all_of(ranks, [&](std::uint64_t number) {
                         return number == expected++;
                       }));
  if (!is_job && process.rank >= 0 && get_text(process.job) != "") return;
  process.rank = static_cast<std::int32_t>(ranks[static_cast<std::size_t>(rank_)]);
  process.size = size_;
  put_text(process.job, id());
  put_text(process.host, read_variables().host_id);
  put_text(process.backend, getBackendName());
  recorder.set_process(process);
}

std::vector<Relative> ProcessGroupVccl::communicators_of(
    const std::vector<c10::intrusive_ptr<ProcessGroupVccl>>& groups) {
  std::vector<Relative> result;
  for (const auto& group : groups) {
    const auto theirs = group->communicators_.relatives(false);
    result.insert(result.end(), theirs.begin(), theirs.end());
  }
  return result;
}

ProcessGroupVccl::~ProcessGroupVccl() {
  // Without shutdown(), nobody waits for operations that are still under way.
  leave(milliseconds(0));
  WithoutGil without_gil;
  kept_.reset();
}

void ProcessGroupVccl::leave(milliseconds patience) noexcept {
  WithoutGil without_gil;
  {
    // shutdown_all() holds the lock while it closes a group. After this line it is not closing this group,
    // and it will not.
    std::lock_guard lock(living().mutex);
    living().groups.erase(this);
  }
  close(patience);
}

void ProcessGroupVccl::close(milliseconds patience) noexcept {
  // This comes first, because the program does not know yet of failures while the group closes.
  failures_->close();
  communicators_.close(patience);
  held_records_.drop();
  forget_answering_ranks(id());
  if (recording_) recording_->close();
  if (dump_requests_) dump_requests_->end(patience);
  // Everything has ended, so the hook is called for every operation.
  if (auto* hook = watching_.load(std::memory_order_acquire)) hook->close(patience);
}

void ProcessGroupVccl::shutdown() {
  const auto strikes = faults::begin_phase("destroy", options_->group_name, options_->group_desc);
  const auto circle = circle_at_the_end();
  leave(timeout_.load());
  if (strikes) strikes->strike(faults::Moment::after);
  vdev::raise_interruption();
  if (!circle.empty()) with_torch_errors([&] { throw Error(ErrorCode::mismatch, circle); });
}

void ProcessGroupVccl::shutdown_all(milliseconds patience) {
  WithoutGil without_gil;
  // shutdown_all() keeps the lock, so that no group is destroyed meanwhile: the destructor takes the lock
  // first.
  std::lock_guard lock(living().mutex);
  for (auto* group : living().groups) group->close(patience);
  living().groups.clear();
  wait_for_callbacks(patience);
  DeadlockWatch::of_this_process().stop(patience);
  end_record(patience);
}

void ProcessGroupVccl::abort() {
  WithoutGil without_gil;
  abort_hooks_->call();
  failures_->settle();
  if (order_) order_->note_failure();
  communicators_.abort(base::text(
      names().rank(rank_), " aborted the group ", group_name(),
      "; look for the error that a rank has raised before, destroy the group, and make a new one"));
}

std::map<int, std::string> ProcessGroupVccl::ended_ranks() const {
  std::map<int, std::string> ended;
  for (const auto& entry : communicators_.all()) {
    for (int rank = 0; rank < size_; ++rank) {
      const auto end = entry->communicator()->end_of(rank);
      if (end) ended.emplace(rank, end->text(names(), rank));
    }
  }
  return ended;
}

std::shared_ptr<const WorkVccl::Group> ProcessGroupVccl::group_for_profiler() const {
  if (!at::hasCallbacks()) return nullptr;
  return std::make_shared<const WorkVccl::Group>(WorkVccl::Group{pg_uid_, pg_desc_, size_});
}

std::uint64_t ProcessGroupVccl::record_for_profiler(const Request& request, std::uint64_t sequence) const {
  if (!at::hasCallbacks()) return 0;
  const auto elements = [](const Tensors& tensors) {
    std::int64_t sum = 0;
    for (const auto& tensor : tensors) sum += tensor.numel();
    return sum;
  };
  const auto& ranks = options_->global_ranks_in_group;
  const auto first = ranks.empty() ? 0 : static_cast<int>(ranks.front());
  const auto stride = ranks.size() > 1 ? static_cast<int>(ranks[1] - ranks[0]) : 1;
  const auto& moved = request.outputs.empty() ? request.inputs : request.outputs;
  // For a message, the profiler wants the rank at the other end, as ProcessGroupNCCL gives it.
  const int rank = request.is_message() ? request.peer : rank_;
  RECORD_PARAM_COMMS_DATA_WITH_ASYNC_OP(
      std::make_tuple(static_cast<std::int64_t>(sequence), request.is_message()),
      std::make_tuple(pg_uid_, pg_desc_), request.inputs, request.outputs, rank, record_of(request.name),
      elements(request.inputs), elements(request.outputs),
      moved.empty() ? at::kByte : moved.front().scalar_type(), request.input_splits, request.output_splits,
      first, stride, size_, request.async);
  return vdev::current_correlation();  // the record is open until here
}

const std::string ProcessGroupVccl::getBackendName() const {
  return vdev::pose() == vdev::Pose::cuda ? "nccl" : "vccl";
}

// The other ranks wait on the communicator of the card that was named at the start. A tensor on another card
// is usually due to a forgotten set_device(), and that card's communicator would wait for ranks that never
// come. ProcessGroupNCCL raises in this case, too.
void ProcessGroupVccl::check_bound_card(const Request& request) const {
  if (request.device.is_cpu() || !bound_device_id_ || *bound_device_id_ == request.device) return;
  TORCH_CHECK_VALUE(false, request.name, ": the tensor is on ", request.device, ", and ",
                    names().of_group(rank_), " is bound to ", *bound_device_id_,
                    " (device_id of init_process_group). Move the tensor there; torch.", vdev::device_name(),
                    ".set_device(", static_cast<int>(bound_device_id_->index()),
                    ") makes that card the current one.");
}

ProcessGroupVccl::BegunOperation ProcessGroupVccl::begin_operation(c10d::OpType type,
                                                                   std::span<const Request> requests,
                                                                   std::atomic<std::uint64_t>& count,
                                                                   bool batch) {
  BegunOperation begun{++count, std::make_shared<Outcome>(), 0, {}};
  const bool message = &count == &message_sequence_;
  const auto& other = message ? sequence_ : message_sequence_;
  begun.recorded = recording_->begin(requests, batch, message, begun.sequence,
                                     other.load(std::memory_order_relaxed), begun.outcome->created_ns());
  begun.outcome->record_in(recording_->recorder(), begun.recorded);
  for (const auto& request : requests) begun.record = record_for_profiler(request, begun.sequence);
  ExtraTime::begin(extra_time_, *begun.outcome);
  SuccessHooks::watch(success_hooks_, begun.outcome);
  AbortHooks::watch(abort_hooks_, *begun.outcome);
  watch_completion(begun.outcome, type, begun.sequence);
  if (order_) begun.outcome->mark_failure_in(GroupOrder::failure_mark(order_));
  // The last of these, because it may end the process.
  watch_failure(options_->after_failure, communicators_.to_abort(), *begun.outcome);
  return begun;
}

HashedEntry ProcessGroupVccl::hashed_entry(const RecordedOperation& operation, std::uint64_t call) const {
  auto& recorder = recording_->recorder();
  if (!recorder.wants_hashes() || operation.count == 0) return {};
  return {&recorder, operation.first + call};
}

ProcessGroupVccl::WorkPtr ProcessGroupVccl::launch(Request request, CollectivePlan plan) {
  check_bound_card(request);
  request.timeout = effective(request.timeout);
  if (nccl_.on() && !request.device.is_cpu()) plan.drop_empty_calls();
  plan.check_nan(checks_nan_.load(std::memory_order_relaxed));
  if (coalescing_.active()) return coalescing_.add(std::move(request), std::move(plan));
  WithoutGil without_gil;
  return begin([&]() -> WorkPtr {
    const auto where = communicators_.get(request.device, request.timeout, request.name);
    if (faults::on() && !is_captured(request.device)) [[unlikely]]
      plan.set_faults(faults_of_call(request, sequence_ + 1, options_->group_name, options_->group_desc));
    if (is_captured(request.device)) {
      std::vector<CollectivePlan> plans;
      plans.push_back(std::move(plan));
      auto entries = entries_of({&request, 1}, false);
      return capture(std::move(request), *where, std::move(plans), std::move(entries));
    }
    const bool on_card = !request.device.is_cpu();
    if (on_card && order_) put_in_order(request, plan);
    const auto [sequence, outcome, record, recorded] =
        begin_operation(request.type, {&request, 1}, sequence_);
    plan.hash_for(hashed_entry(recorded, 0));
    const vdev::ActivityScope activity([&, number = sequence, correlation = record] {
      auto label = label_of({&request, 1}, request.name, labelled(number));
      label.correlation = correlation;
      return label;
    });
    if (!request.async) profile_launch(rank_, request.type, request.name, request.inputs, request.outputs);

    std::shared_ptr<HeldMemory> memory;
    if (on_card && request.async) memory = std::make_shared<HeldMemory>();
    if (on_card) plan.hold_memory_in(memory);
    vdev::races::Point watched;
    if (vdev::races::is_on()) {
      const auto meeting = meeting_of({id(), rank_, size_}, plan, request.device, sequence);
      watched = watch_collective(request, *where, touched_by({&plan, 1}), &meeting);
    }
    std::vector<CollectivePlan> plans;
    plans.push_back(std::move(plan));
    auto task = std::make_shared<CollectiveTask>(where->communicator(), request.name, std::move(plans),
                                                 request.timeout, outcome, failures_on(request.device));
    vdev::Task body(std::move(task));
    if (on_card && !request.async) {
      where->launch_on_current_stream(std::move(body));
      if (options_->blocking_wait) {
        const auto current = vdev::current_stream(request.device.index());
        current->synchronize();
        if (vdev::races::is_on()) vdev::races::host_waits_for(*current, 0, nullptr);
      }
      return nullptr;  // the caller's stream runs the task, so there is nothing to wait for
    }
    const auto start = request.async ? vdev::Start::kAtOnce : vdev::Start::kByWaiter;
    const auto end = where->launch(std::move(body), start, request.after);
    if (!request.async) {
      end.wait();
      if (watched) vdev::races::host_waits_for(watched, 0, nullptr);
      if (auto error = outcome->error()) std::rethrow_exception(error);
      if (request.blocks_host) end.synchronize();  // operations before a barrier may have failed
      return nullptr;
    }
    return c10::make_intrusive<WorkVccl>(
        WorkVccl::Description{
            rank_, request.type, request.name, std::move(request.inputs), std::move(request.outputs),
            sequence, request.blocks_host || options_->blocking_wait, group_for_profiler(), std::move(memory),
            std::move(watched), wait_rules(request.device, request.timeout), request.stacks_outputs},
        WorkVccl::Place(*where, failures_), end, outcome);
  });
}

void ProcessGroupVccl::launch_plan(const char* name, Tensors inputs, Tensors outputs, CollectivePlan plan) {
  c10d::AllreduceOptions options;
  options.asyncOp = false;
  launch(request_of(c10d::OpType::UNKNOWN, name, std::move(inputs), std::move(outputs), options),
         std::move(plan));
}

bool ProcessGroupVccl::is_captured(c10::Device device) {
  return !device.is_cpu() && vdev::is_captured(device.index());
}

// The operation is the group's at each replay, and not now. So the completion hook does not see it, and the
// handle is that of an operation that has ended well; waiting for it only orders the captured streams.
ProcessGroupVccl::WorkPtr ProcessGroupVccl::capture(Request request, DeviceCommunicator& where,
                                                    std::vector<CollectivePlan> plans,
                                                    std::vector<FlightEntry> entries) {
  const auto sequence = ++sequence_;
  auto memory = request.async ? std::make_shared<HeldMemory>() : nullptr;
  // Only the Work holds the memory: the graph outlives it, and must not keep the memory.
  for (auto& plan : plans) plan.leave_memory_to_stream(memory.get());
  const auto touched = touched_by(plans);
  auto task = std::make_shared<CapturedCollective>(
      where.communicator(), request.name, std::move(plans), request.timeout, failures_on(request.device),
      CapturedCollective::Record{recording_, std::move(entries)});
  const vdev::ActivityScope activity(
      [&] { return label_of({&request, 1}, request.name, labelled(sequence)); });
  vdev::Task body(std::move(task));
  if (!request.async) {
    where.capture_on_current_stream(std::move(body));
    watch_collective(request, where, touched, nullptr);
    return nullptr;
  }
  const auto end = where.capture(std::move(body), request.after);
  auto watched = watch_collective(request, where, touched, nullptr);
  auto outcome = std::make_shared<Outcome>();
  outcome->finish(nullptr);
  return c10::make_intrusive<WorkVccl>(
      WorkVccl::Description{
          rank_, request.type, request.name, std::move(request.inputs), std::move(request.outputs), sequence,
          request.blocks_host || options_->blocking_wait, group_for_profiler(), std::move(memory),
          std::move(watched), wait_rules(request.device, request.timeout), request.stacks_outputs},
      WorkVccl::Place(where, failures_), end, std::move(outcome));
}

// Every rank counts from zero and has the same calls, so the ranks need not agree on a number.
void ProcessGroupVccl::setSequenceNumberForGroup() {}

std::uint64_t ProcessGroupVccl::getSequenceNumberForGroup() {
  return sequence_.load();
}

// Durations are always measured, because they only cost two readings of the clock.
void ProcessGroupVccl::enableCollectivesTiming() {
  timing_.store(true, std::memory_order_relaxed);
}

c10d::ErrorType ProcessGroupVccl::getError() {
  const auto failure = communicators_.failure();
  if (!failure) return c10d::ErrorType::SUCCESS;
  switch (failure->code()) {
    case ErrorCode::timeout:
      // All ranks get the same text, which begins with the rank whose wait has timed out.
      return std::string_view(failure->what()).starts_with(base::text(names().rank(rank_), ' '))
                 ? c10d::ErrorType::TIMEOUT
                 : c10d::ErrorType::REMOTE_ERROR;
    case ErrorCode::peer_dead:
    case ErrorCode::peer_left:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

}  // namespace vccl
