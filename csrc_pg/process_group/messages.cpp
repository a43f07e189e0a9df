// Messages between two ranks, and batches of calls that are launched together.
#include <algorithm>
#include <utility>

#include "base/text.hpp"
#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/torch/gil.hpp"
#include "csrc_pg/arguments/checks.hpp"
#include "csrc_pg/arguments/torch_types.hpp"
#include "csrc_pg/operations/errors.hpp"
#include "csrc_pg/operations/faults_of_call.hpp"
#include "csrc_pg/operations/profiler_names.hpp"
#include "csrc_pg/process_group/process_group.hpp"
#include "csrc_pg/tasks/collective_task.hpp"
#include "csrc_pg/tasks/watched_operation.hpp"

namespace vccl {

using std::chrono::milliseconds;
using vdev::WithoutGil;
using WorkPtr = ProcessGroupVccl::WorkPtr;

namespace {

// A message is paired with the peer's by a tag and not by an order that replays could have a place in.
void refuse_message_in_graph(c10::Device device) {
  if (!device.is_cpu()) vdev::refuse_captured(*vdev::current_stream(device.index()), "send and receive");
}

MessageCall message_call(const at::Tensor& tensor, bool sends, int peer, int tag, int size,
                         const char* name) {
  TORCH_CHECK_VALUE(peer == kAnySource || (peer >= 0 && peer < size), name, ": the ",
                    sends ? "destination" : "source", " is rank ", peer, " of a group of ", size, " ranks");
  MessageCall call{.sends = sends, .peer = peer, .tag = {tag, !tensor.device().is_cpu()}};
  call.signature.collective = static_cast<std::uint8_t>(Collective::message);
  call.signature.dtype = static_cast<std::uint8_t>(to_dtype(tensor.scalar_type(), name));
  call.signature.count = static_cast<std::uint64_t>(tensor.numel());
  // A send only reads the tensor.
  void* data = sends ? const_cast<void*>(call.plan.read(tensor)) : call.plan.write(tensor);
  call.bytes = {static_cast<std::byte*>(data), tensor.nbytes()};
  return call;
}

// Makes the profiler show the message from its post to its end. `record` is the profiler's number for the
// record of the call, or 0.
void label_message(MessageCall& call, MessageLane& lane, const Request& request, const LabelledGroup& group,
                   std::uint64_t record) {
  const vdev::ActivityScope activity([&] {
    auto label = label_of({&request, 1}, request.name, group);
    label.correlation = record;
    return label;
  });
  call.activity = lane.tracks().launch(call.sends, call.peer);
}

// With VDEV_LAUNCH_BLOCKING=1, errors should appear where they are caused. The call of a message cannot wait
// for its end, because two ranks may both send to each other before they receive. So the message's wait()
// blocks the host.
bool wait_blocks_host(const Options& options, bool has_messages) {
  return options.blocking_wait || (has_messages && vdev::environment().launch_blocking);
}

// gloo takes card tensors in collectives only: for a message, it gives the system their address.
void check_has_messages(const Request& request, StandsFor stands_for) {
  TORCH_CHECK(stands_for != StandsFor::gloo || request.device.is_cpu(), request.name,
              ": a group of gloo sends no tensors of ", request.device.type(),
              ", which is an error on GPUs. Send tensor.cpu(), or use a group with the backend nccl");
}

constexpr const char* kNameOfBatch = "coalesced calls";

}  // namespace

bool ProcessGroupVccl::goes_over_group(c10::Device device) const {
  return device.is_cpu() || coalescing_.active() || connected_at_once_.load();
}

int ProcessGroupVccl::matched_tag(const at::Tensor& tensor, int tag, const char* name) const {
  if (!nccl_.on() || tensor.device().is_cpu()) {
    TORCH_CHECK_VALUE(tag >= 0, name, ": the tag is ", tag, ", and must not be negative");
    return tag;
  }
  return goes_over_group(tensor.device()) ? MessageTag::kNoneInBatch : MessageTag::kNoneAlone;
}

WorkPtr ProcessGroupVccl::send(Tensors& tensors, int to, int tag) {
  const auto& tensor = single(tensors, "send");
  nccl_.check_message(tensor, "send");
  TORCH_CHECK_VALUE(to >= 0, "send: the destination is rank ", to, " of a group of ", size_, " ranks");
  auto call =
      message_call(nccl_.memory_of(tensor), true, to, matched_tag(tensor, tag, "send"), size_, "send");
  Request request{c10d::OpType::SEND, "send", tensor.device(), tensors, {}, c10d::kUnsetTimeout, true};
  request.peer = to;
  request.tag = tag;
  return launch_message(std::move(request), std::move(call));
}

WorkPtr ProcessGroupVccl::recv(Tensors& tensors, int from, int tag) {
  const auto& tensor = single(tensors, "recv");
  nccl_.check_message(tensor, "recv");
  check_written(tensor, "tensor", "recv");
  TORCH_CHECK_VALUE(from >= 0, "recv: the source is rank ", from, " of a group of ", size_, " ranks");
  auto call =
      message_call(nccl_.memory_of(tensor), false, from, matched_tag(tensor, tag, "recv"), size_, "recv");
  Request request{c10d::OpType::RECV, "recv", tensor.device(), {}, tensors, c10d::kUnsetTimeout, true};
  request.peer = from;
  request.tag = tag;
  return launch_message(std::move(request), std::move(call));
}

WorkPtr ProcessGroupVccl::recvAnysource(Tensors& tensors, int tag) {
  const auto& tensor = single(tensors, "recv");
  if (!tensor.is_cpu()) nccl_.refuse_unsupported("recvAnysource", "recv from any rank");
  check_written(tensor, "tensor", "recv");
  auto call = message_call(tensor, false, kAnySource, matched_tag(tensor, tag, "recv"), size_, "recv");
  Request request{c10d::OpType::RECVANYSOURCE, "recv", tensor.device(), {}, tensors,
                  c10d::kUnsetTimeout,         true};
  request.blocks_host = true;  // the caller goes on to ask for the source
  request.tag = tag;
  return launch_message(std::move(request), std::move(call));
}

namespace {

std::vector<MessageLane::Memory> memory_of(std::span<const Request> requests) {
  std::vector<MessageLane::Memory> all;
  const auto add = [&](const Request& request, const at::Tensor& tensor, bool written) {
    const bool is_dense = tensor.is_non_overlapping_and_dense();
    const void* begin = is_dense ? tensor.const_data_ptr() : tensor.storage().data();
    const std::size_t bytes = is_dense ? tensor.nbytes() : tensor.storage().nbytes();
    const auto* first = static_cast<const std::byte*>(begin);
    all.push_back({request.peer, first, first + bytes, written});
  };
  for (const auto& request : requests) {
    if (!request.is_message()) continue;
    for (const auto& tensor : request.inputs) add(request, tensor, false);
    for (const auto& tensor : request.outputs) add(request, tensor, true);
  }
  return all;
}

// Lets the sends be complete once they are copied, if NCCL has room for them in the buffer of a connection.
void buffer_sends(MessageLane& lane, std::span<MessageCall> calls,
                  const std::shared_ptr<vdev::Stream>& stream) {
  for (auto& call : calls)
    if (call.sends && !call.bytes.empty() && call.bytes.size() <= SendBuffer::kBytes)
      call.buffer = lane.send_buffer(stream, call.peer);
}

}  // namespace

ProcessGroupVccl::Messages ProcessGroupVccl::make_messages(MessageLane& lane, const char* name,
                                                           std::vector<MessageCall> calls, int more,
                                                           milliseconds timeout,
                                                           std::shared_ptr<Outcome> outcome,
                                                           const std::shared_ptr<vdev::Stream>& stream) {
  if (stream) buffer_sends(lane, calls, stream);
  lane.under_way()->add(1);
  auto ended = [count = lane.under_way()] { count->add(-1); };
  auto end = std::make_shared<JointEnd>(base::text("vccl ", name), static_cast<int>(calls.size()) + more,
                                        std::move(outcome), failures_on(lane.device()), std::move(ended));
  end->add_interruptible(lane.interruptible());
  auto task = std::make_shared<MessageTask>(lane.communicator(), name, std::move(calls), timeout, end);
  return {std::move(end), vdev::Task(std::move(task))};
}

void ProcessGroupVccl::begin_messages(MessageLane& lane, const char* name, Messages messages,
                                      std::span<const Request> requests,
                                      const std::shared_ptr<vdev::Stream>& stream) {
  const vdev::ActivityScope activity(
      [&] { return vdev::ActivityLabel{vdev::ActivityKind::kTask, base::text("post of ", run_of(name))}; });
  const auto& end = messages.end->event();
  const auto used = memory_of(requests);
  const auto waited_for = lane.wait_for_earlier(used);
  if (stream)
    lane.post_in_order(stream, std::move(messages.task), end);
  else
    lane.post(std::move(messages.task));
  lane.note(used, end, waited_for);
}

std::shared_ptr<vdev::Stream> ProcessGroupVccl::stream_of_message(MessageLane& lane, const Request& request) {
  if (!nccl_.on() || request.device.is_cpu()) return nullptr;
  if (goes_over_group(request.device))
    return communicators_.get(request.device, request.timeout, request.name)->stream();
  pair_meetings_.meet(lane, request.peer, request.timeout);
  return lane.stream_with(request.peer);
}

WorkPtr ProcessGroupVccl::launch_message(Request request, MessageCall call) {
  check_has_messages(request, options_->stands_for);
  check_bound_card(request);
  request.timeout = effective(request.timeout);
  refuse_message_in_graph(request.device);
  call.plan.check_nan(checks_nan_.load(std::memory_order_relaxed));
  if (coalescing_.active()) return coalescing_.add(std::move(request), std::move(call));
  WithoutGil without_gil;
  return begin([&]() -> WorkPtr {
    const auto lane = communicators_.lane(request.device, request.timeout);
    const auto stream = stream_of_message(*lane, request);
    if (faults::on()) [[unlikely]]
      call.plan.set_faults(
          faults_of_call(request, message_sequence_ + 1, options_->group_name, options_->group_desc));
    const auto [sequence, outcome, record, recorded] =
        begin_operation(request.type, {&request, 1}, message_sequence_);
    call.plan.hash_for(hashed_entry(recorded, 0));
    if (vdev::is_recording()) label_message(call, *lane, request, labelled(sequence), record);
    const auto memory = request.device.is_cpu() ? nullptr : std::make_shared<HeldMemory>();
    if (memory) call.plan.hold_memory_in(memory);
    vdev::races::Point watched;
    if (vdev::races::is_on())
      watched = watch_messages(request.name, *lane, std::max(request.peer, -1), touched_by({}, {&call, 1}),
                               meetings_of({id(), rank_, size_}, {&call, 1}, request.device));
    std::vector<MessageCall> calls;
    calls.push_back(std::move(call));
    auto messages = make_messages(*lane, request.name, std::move(calls), 0, request.timeout, outcome, stream);
    const auto end = messages.end->event();
    begin_messages(*lane, request.name, std::move(messages), {&request, 1}, stream);
    return c10::make_intrusive<WorkVccl>(
        WorkVccl::Description{rank_, request.type, request.name, std::move(request.inputs),
                              std::move(request.outputs), sequence,
                              request.blocks_host || wait_blocks_host(*options_, true), group_for_profiler(),
                              memory, std::move(watched), wait_rules(request.device, request.timeout)},
        WorkVccl::Place(*lane, failures_), end, outcome);
  });
}

void ProcessGroupVccl::startCoalescing() {
  coalescing_.start();
}

void ProcessGroupVccl::cancel_coalescing() {
  coalescing_.take();
}

WorkPtr ProcessGroupVccl::endCoalescing() {
  auto batch = coalescing_.take();
  TORCH_CHECK(batch, "endCoalescing: this thread has not called startCoalescing on the group ", group_name());
  if (batch->requests.empty()) return nullptr;
  const auto entries = std::move(batch->entries);
  auto work = launch_batch(std::move(*batch));
  for (const auto& entry : entries)
    if (const auto held = entry.lock()) held->launched(work);
  return work;
}

namespace {

template <class Get>
std::vector<at::Tensor> all_of(const std::vector<Request>& requests, const Get& get) {
  std::vector<at::Tensor> all;
  for (const auto& request : requests)
    for (const auto& tensor : get(request)) all.push_back(tensor);
  return all;
}

// Calls function(number, request, plan) for each call of the batch, in the order of the calls.
template <class Function>
void for_each_call(Batch& batch, const Function& function) {
  auto message = batch.messages.begin();
  auto plan = batch.plans.begin();
  for (std::size_t i = 0; i < batch.requests.size(); ++i) {
    Request& request = batch.requests[i];
    function(i, request, request.is_message() ? (message++)->plan : *plan++);
  }
}

}  // namespace

WorkPtr ProcessGroupVccl::launch_batch(Batch batch) {
  WithoutGil without_gil;
  return begin([&]() -> WorkPtr {
    const auto device = batch.requests.front().device;
    const auto by_timeout = [](const Request& a, const Request& b) { return a.timeout < b.timeout; };
    const auto timeout = std::max_element(batch.requests.begin(), batch.requests.end(), by_timeout)->timeout;
    const bool has_messages = !batch.messages.empty(), has_collectives = !batch.plans.empty();
    if (has_messages) refuse_message_in_graph(device);
    const auto lane = has_messages ? communicators_.lane(device, timeout) : nullptr;
    // With NCCL, all ranks of the group have to take part in the first batch.
    const bool in_order = has_messages && nccl_.on() && !device.is_cpu();
    const auto where =
        has_collectives || in_order ? communicators_.get(device, timeout, kNameOfBatch) : nullptr;

    if (has_collectives && !has_messages && is_captured(device)) {
      Request all{c10d::OpType::COALESCED,
                  batch.requests.size() == 1 ? batch.requests.front().name : "coalesced",
                  device,
                  all_of(batch.requests, [](const Request& request) { return request.inputs; }),
                  all_of(batch.requests, [](const Request& request) { return request.outputs; }),
                  timeout,
                  true};
      return capture(std::move(all), *where, std::move(batch.plans), entries_of(batch.requests, true));
    }
    if (faults::on()) [[unlikely]]
      for_each_call(batch, [&](std::size_t, const Request& request, CollectivePlan& plan) {
        plan.set_faults(faults_of_call(request, (has_collectives ? sequence_ : message_sequence_) + 1,
                                       options_->group_name, options_->group_desc));
      });
    if (order_ && has_collectives && !device.is_cpu()) {
      for_each_call(batch, [&](std::size_t, Request& request, CollectivePlan& plan) {
        if (!request.is_message()) put_in_order(request, plan);
      });
    }
    // The batch counts as one collective if it has any collective.
    const auto [sequence, outcome, record, recorded] = begin_operation(
        c10d::OpType::COALESCED, batch.requests, has_collectives ? sequence_ : message_sequence_, true);
    for_each_call(batch, [&](std::size_t i, const Request&, CollectivePlan& plan) {
      plan.hash_for(hashed_entry(recorded, i));
    });
    std::vector<vdev::Event> after;
    for (const auto& request : batch.requests)
      after.insert(after.end(), request.after.begin(), request.after.end());
    const char* const name = batch.requests.size() == 1 ? batch.requests.front().name : "coalesced";

    const auto memory = device.is_cpu() ? nullptr : std::make_shared<HeldMemory>();
    if (memory) {
      for (auto& plan : batch.plans) plan.hold_memory_in(memory);
      for (auto& call : batch.messages) call.plan.hold_memory_in(memory);
    }
    const auto touched = touched_by(batch.plans, batch.messages);
    vdev::races::Point watched;
    std::vector<vdev::races::Meeting> meetings;
    if (vdev::races::is_on()) {
      const Members members{id(), rank_, size_};
      meetings = meetings_of(members, batch.messages, device);
      if (has_collectives) meetings.push_back(meeting_of(members, CollectivePlan(), device, sequence));
      if (has_messages) watched = watch_messages(name, *lane, -1, touched, meetings);
    }
    vdev::Event end;
    std::shared_ptr<JointEnd> joint;
    if (has_messages && vdev::is_recording()) {
      auto message = batch.messages.begin();
      for (const auto& request : batch.requests)
        if (request.is_message()) label_message(*message++, *lane, request, labelled(sequence), 0);
    }
    Messages messages;
    if (has_messages) {
      messages = make_messages(*lane, name, std::move(batch.messages), has_collectives, timeout, outcome,
                               in_order ? where->stream() : nullptr);
      joint = messages.end;
      end = joint->event();
      if (!in_order) begin_messages(*lane, name, std::move(messages), batch.requests, nullptr);
    }
    if (has_collectives) {
      auto own = joint ? std::make_shared<Outcome>() : outcome;
      if (joint)
        own->when_finished([joint, it = own.get()](std::exception_ptr error) {
          joint->part_ended(std::move(error), it->error_code());
        });
      auto task = std::make_shared<CollectiveTask>(where->communicator(), name, std::move(batch.plans),
                                                   timeout, std::move(own), failures_on(device));
      const vdev::ActivityScope activity(
          [&, number = sequence] { return label_of(batch.requests, name, labelled(number)); });
      if (!has_messages && vdev::races::is_on())
        watched = watch_collective({c10d::OpType::COALESCED, name, device, {}, {}, timeout, true}, *where,
                                   touched, &meetings.front());
      const auto ran = where->launch(vdev::Task(std::move(task)), vdev::Start::kAtOnce, after);
      if (!joint) end = ran;
    }
    // NCCL runs the collectives of a batch before its messages.
    if (in_order) begin_messages(*lane, name, std::move(messages), batch.requests, where->stream());
    return c10::make_intrusive<WorkVccl>(
        WorkVccl::Description{rank_, c10d::OpType::COALESCED, name,
                              all_of(batch.requests, [](const Request& request) { return request.inputs; }),
                              all_of(batch.requests, [](const Request& request) { return request.outputs; }),
                              sequence, wait_blocks_host(*options_, has_messages), group_for_profiler(),
                              memory, std::move(watched), wait_rules(device, timeout)},
        has_messages ? WorkVccl::Place(*lane, failures_) : WorkVccl::Place(*where, failures_), end, outcome);
  });
}

}  // namespace vccl
