#include "csrc_pg/process_group.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/gil.hpp"
#include "csrc_pg/callback_pool.hpp"
#include "csrc_pg/checks.hpp"
#include "csrc_pg/errors.hpp"
#include "csrc_pg/task.hpp"
#include "csrc_pg/types.hpp"

namespace vccl {

using vdev::WithoutGil;

namespace {

using std::chrono::milliseconds;

// The groups of the process that still hold communicators, for shutdown_all().
struct Living {
  std::mutex mutex;
  std::set<ProcessGroupVccl*> groups;
};

Living& living() {
  static auto* all = new Living;  // never destroyed: groups may outlive static destructors
  return *all;
}

}  // namespace

ProcessGroupVccl::ProcessGroupVccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                   c10::intrusive_ptr<Options> options)
    : Backend(rank, size),
      store_(std::move(store)),
      options_(std::move(options)),
      timeout_(options_->timeout),
      communicators_(store_, {rank, size, options_->is_high_priority_stream}) {
  init();
  WithoutGil without_gil;
  // Messages need it between any two ranks, at a time when the others may do something else for long.
  with_torch_errors([&] { communicators_.get(c10::kCPU, group_name(), timeout_.load()); });
  std::lock_guard lock(living().mutex);
  living().groups.insert(this);
}

ProcessGroupVccl::~ProcessGroupVccl() {
  // Without shutdown() nobody waits for what is still under way.
  leave(milliseconds(0));
}

void ProcessGroupVccl::leave(milliseconds patience) noexcept {
  WithoutGil without_gil;
  {
    // shutdown_all() holds the lock while it is at a group: past this line it is not, and will not be, at
    // ours.
    std::lock_guard lock(living().mutex);
    living().groups.erase(this);
  }
  close(patience);
}

void ProcessGroupVccl::close(milliseconds patience) noexcept {
  communicators_.close(patience);
  // Everything has ended: the hook hears of all of it.
  if (auto* hook = watching_.load(std::memory_order_acquire)) hook->close(patience);
}

void ProcessGroupVccl::shutdown() {
  leave(timeout_.load());
}

void ProcessGroupVccl::shutdown_all(milliseconds patience) {
  WithoutGil without_gil;
  // Under the lock, so that no group is destroyed meanwhile: its destructor takes the lock first.
  std::lock_guard lock(living().mutex);
  for (auto* group : living().groups) group->close(patience);
  living().groups.clear();
  wait_for_callbacks(patience);
}

void ProcessGroupVccl::abort() {
  WithoutGil without_gil;
  communicators_.abort("rank " + std::to_string(rank_) + " aborted the group " + group_name());
}

std::string ProcessGroupVccl::group_name() const {
  // torch numbers its groups; the description is what a person called it.
  if (!pg_desc_.empty() && pg_desc_ != "undefined") return pg_desc_;
  return options_->group_name.empty() ? pg_uid_ : options_->group_name;
}

milliseconds ProcessGroupVccl::effective(milliseconds timeout) const {
  return timeout == c10d::kUnsetTimeout ? timeout_.load() : timeout;
}

std::shared_ptr<const WorkVccl::Group> ProcessGroupVccl::group_for_profiler() const {
  if (!at::hasCallbacks()) return nullptr;
  return std::make_shared<const WorkVccl::Group>(WorkVccl::Group{pg_uid_, pg_desc_, size_});
}

void ProcessGroupVccl::record_for_profiler(const Request& request, std::uint64_t sequence) const {
  if (!at::hasCallbacks()) return;
  const auto elements = [](const Tensors& tensors) {
    std::int64_t sum = 0;
    for (const auto& tensor : tensors) sum += tensor.numel();
    return sum;
  };
  const auto& ranks = options_->global_ranks_in_group;
  const auto first = ranks.empty() ? 0 : static_cast<int>(ranks.front());
  const auto stride = ranks.size() > 1 ? static_cast<int>(ranks[1] - ranks[0]) : 1;
  const auto& moved = request.outputs.empty() ? request.inputs : request.outputs;
  // The profiler takes the rank of a message for its other end, as ProcessGroupNCCL has it.
  const int rank = request.is_message() ? request.peer : rank_;
  RECORD_PARAM_COMMS_DATA_WITH_ASYNC_OP(
      std::make_tuple(static_cast<std::int64_t>(sequence), request.is_message()),
      std::make_tuple(pg_uid_, pg_desc_), request.inputs, request.outputs, rank, request.name,
      elements(request.inputs), elements(request.outputs),
      moved.empty() ? at::kByte : moved.front().scalar_type(), request.input_splits, request.output_splits,
      first, stride, size_, request.async);
}

ProcessGroupVccl::WorkPtr ProcessGroupVccl::launch(Request request, Plan plan) {
  request.timeout = effective(request.timeout);
  if (coalescing_.active()) return coalescing_.add(std::move(request), std::move(plan));
  WithoutGil without_gil;
  return with_torch_errors([&]() -> WorkPtr {
    const auto where = communicators_.get(request.device, group_name(), request.timeout);
    const auto sequence = ++sequence_;
    record_for_profiler(request, sequence);
    if (!request.async) profile_launch(rank_, request.type, request.name, request.inputs, request.outputs);

    const bool on_card = !request.device.is_cpu();
    auto outcome = std::make_shared<Outcome>();
    std::vector<Plan> plans;
    plans.push_back(std::move(plan));
    auto task = std::make_shared<CollectiveTask>(where->communicator(), request.name, std::move(plans),
                                                 request.timeout, outcome,
                                                 /*throws=*/on_card);
    auto body = [task = std::move(task)] { task->run(); };
    watch_completion(outcome, request.type, sequence);
    if (on_card && !request.async) {
      where->launch_on_current_stream(std::move(body));
      return nullptr;  // there is nothing to wait for: the caller is on that stream
    }
    const auto start = request.async ? vdev::Start::kAtOnce : vdev::Start::kByWaiter;
    const auto end = where->launch(std::move(body), start, request.after);
    if (!request.async) {
      end.wait();
      if (auto error = end.error()) std::rethrow_exception(error);
      if (auto error = outcome->error()) std::rethrow_exception(error);
      return nullptr;
    }
    return c10::make_intrusive<WorkVccl>(
        WorkVccl::Description{rank_, request.type, request.name, std::move(request.inputs),
                              std::move(request.outputs), sequence, request.blocks_host,
                              group_for_profiler()},
        WorkVccl::Place(*where), end, std::move(outcome));
  });
}

ProcessGroupVccl::WorkPtr ProcessGroupVccl::barrier(const c10d::BarrierOptions& options) {
  TORCH_CHECK_VALUE(options.device_ids.size() <= 1,
                    "barrier: backend vccl takes one device id, and was given ", options.device_ids.size());
  int card = vdev::current_card();
  if (!options.device_ids.empty())
    card = static_cast<int>(options.device_ids.front());
  else if (bound_device_id_ && !bound_device_id_->is_cpu())
    card = bound_device_id_->index();

  Request request{c10d::OpType::BARRIER, "barrier",      c10::Device(c10::kCPU), {}, {},
                  options.timeout,       options.asyncOp};
  request.blocks_host = true;
  for (const auto& entry : communicators_.all())
    if (!entry->device().is_cpu()) request.after.push_back(entry->last());
  if (vdev::card_used(card)) request.after.push_back(vdev::current_stream(card)->record());

  Plan plan;
  plan.add(Call{.collective = Collective::barrier});
  return launch(std::move(request), std::move(plan));
}

void ProcessGroupVccl::setTimeout(milliseconds timeout) {
  timeout_.store(timeout);
  options_->timeout = timeout;
}

// Every rank counts from zero, and what a group counts is the same on every rank: nothing to agree on.
void ProcessGroupVccl::setSequenceNumberForGroup() {}

std::uint64_t ProcessGroupVccl::getSequenceNumberForGroup() {
  return sequence_.load();
}

// Durations cost two looks at the clock: they are always measured.
void ProcessGroupVccl::enableCollectivesTiming() {}

c10d::ErrorType ProcessGroupVccl::getError() {
  const auto failure = communicators_.failure();
  if (!failure) return c10d::ErrorType::SUCCESS;
  switch (failure->code()) {
    case ErrorCode::timeout:
      return c10d::ErrorType::TIMEOUT;
    case ErrorCode::peer_dead:
    case ErrorCode::peer_left:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

}  // namespace vccl
