#include "csrc_pg/operations/recording.hpp"

#include <algorithm>
#include <array>

#include <ATen/core/Tensor.h>

#include "base/clock.hpp"
#include "csrc_pg/dumps/own_flight_recorder.hpp"
#include "csrc_pg/operations/call_stack.hpp"
#include "recorder/flight_details.hpp"

namespace vccl {
namespace {

using Add = void (FlightEntry::*)(std::uint8_t, std::span<const std::int64_t>) noexcept;

at::IntArrayRef shape_of(const at::Tensor& tensor) {
  // The sizes of a nested tensor are a tensor, and asking for a dimension raises.
  return tensor.is_nested() ? at::IntArrayRef() : tensor.sizes();
}

bool are_alike(const std::vector<at::Tensor>& tensors) {
  const auto& first = tensors.front();
  return std::ranges::all_of(tensors, [&](const at::Tensor& tensor) {
    return tensor.scalar_type() == first.scalar_type() && shape_of(tensor) == shape_of(first);
  });
}

void add_all(FlightEntry& entry, Add add, const std::vector<at::Tensor>& tensors, bool chunks) {
  constexpr std::size_t kMostDimensions = FlightEntry::kMostSizes;
  const auto dtype = [](const at::Tensor& tensor) { return static_cast<std::uint8_t>(tensor.scalar_type()); };
  // Equal chunks are noted as the buffer that they make up together, as ProcessGroupNCCL has it.
  if (chunks && tensors.size() > 1 && are_alike(tensors)) {
    const auto shape = shape_of(tensors.front());
    if (shape.size() < kMostDimensions) {
      std::array<std::int64_t, kMostDimensions> whole{static_cast<std::int64_t>(tensors.size())};
      std::ranges::copy(shape, whole.begin() + 1);
      return (entry.*add)(dtype(tensors.front()), std::span(whole).first(shape.size() + 1));
    }
  }
  for (const auto& tensor : tensors) {
    const auto shape = shape_of(tensor);
    (entry.*add)(dtype(tensor), {shape.data(), shape.size()});
  }
}

bool has_chunks(c10d::OpType type) {
  using c10d::OpType;
  return type == OpType::ALLGATHER || type == OpType::REDUCE_SCATTER || type == OpType::GATHER ||
         type == OpType::SCATTER;
}

CountedCall counted(c10d::OpType type) {
  using c10d::OpType;
  switch (type) {
    case OpType::BROADCAST:
      return CountedCall::broadcast;
    case OpType::REDUCE:
      return CountedCall::reduce;
    case OpType::ALLGATHER:
    case OpType::_ALLGATHER_BASE:
    case OpType::ALLGATHER_COALESCED:
      return CountedCall::all_gather;
    case OpType::REDUCE_SCATTER:
    case OpType::_REDUCE_SCATTER_BASE:
      return CountedCall::reduce_scatter;
    case OpType::ALLREDUCE:
    case OpType::ALLREDUCE_COALESCED:
    case OpType::BARRIER:
      return CountedCall::all_reduce;
    default:
      return CountedCall::none;
  }
}

FlightEntry entry_of(const Request& request) {
  FlightEntry entry;
  entry.counted = counted(request.type);
  put_text(entry.name, request.name);
  entry.timeout_ms = request.timeout.count();
  entry.card = request.device.is_cpu() ? -1 : static_cast<std::int16_t>(request.device.index());
  if (request.is_message()) {
    entry.flags |= FlightEntry::kMessage;
    if (request.type == c10d::OpType::SEND) entry.flags |= FlightEntry::kSends;
    if (request.type == c10d::OpType::RECVANYSOURCE) entry.flags |= FlightEntry::kAnySource;
    entry.peer = request.peer;
    entry.tag = request.tag;
  }
  if (request.async) entry.flags |= FlightEntry::kAsync;
  entry.root = request.root;
  entry.reduction = request.reduction;
  entry.factor = request.factor;
  entry.place_in_order = request.place_in_order;
  const bool chunks = has_chunks(request.type);
  add_all(entry, &FlightEntry::add_input, request.inputs, chunks);
  add_all(entry, &FlightEntry::add_output, request.outputs, chunks);
  return entry;
}

std::vector<FlightDetails::Tensor> described(const std::vector<at::Tensor>& tensors) {
  std::vector<FlightDetails::Tensor> all;
  for (const auto& tensor : tensors)
    all.push_back({static_cast<std::uint8_t>(tensor.scalar_type()), shape_of(tensor).vec()});
  return all;
}

/// Returns what the entry has no room for.
FlightDetails details_of(const Request& request, const FlightEntry& entry) {
  FlightDetails details;
  if (entry.is(FlightEntry::kSizesCut)) {
    details.inputs = described(request.inputs);
    details.outputs = described(request.outputs);
  }
  // Those of an all_to_all of lists are the sizes of its tensors.
  if (request.type == c10d::OpType::ALLTOALL_BASE) {
    details.input_splits = request.input_splits;
    details.output_splits = request.output_splits;
  }
  return details;
}

// The entry of a batch comes behind those of its calls.
FlightEntry entry_of_batch(std::span<const Request> requests) {
  FlightEntry entry;
  put_text(entry.name, "coalesced");
  entry.flags |= FlightEntry::kBatch;
  entry.calls = static_cast<std::uint32_t>(requests.size());
  const auto longest = std::ranges::max(requests, {}, [](const Request& request) { return request.timeout; });
  entry.timeout_ms = longest.timeout.count();
  entry.card =
      requests.front().device.is_cpu() ? -1 : static_cast<std::int16_t>(requests.front().device.index());
  return entry;
}

}  // namespace

std::vector<FlightEntry> entries_of(std::span<const Request> requests, bool batch) {
  std::vector<FlightEntry> entries;
  for (const auto& request : requests) {
    entries.push_back(entry_of(request));
    if (batch) entries.back().flags |= FlightEntry::kInBatch;
  }
  if (batch) entries.push_back(entry_of_batch(requests));
  return entries;
}

Recording::Recording(const FlightGroup& group)
    : recorder_(own_flight_recorder()), group_(recorder_.open_group(group)) {}

Recording::~Recording() {
  close();
}

std::shared_ptr<void> Recording::meeting() {
  recorder_.meets(group_, base::monotonic_ns());
  return {this, [](Recording* recording) { recording->recorder_.meets(recording->group_, 0); }};
}

void Recording::close() noexcept {
  recorder_.close_group(group_);
}

std::string Recording::stack_now() const {
  if (!recorder_.has_stacks()) return {};
  return call_stack(own_recorder_variables().stacks == StacksToRecord::with_cpp);
}

RecordedOperation Recording::begin(std::span<const Request> requests, bool batch, bool message,
                                   std::uint64_t sequence, std::uint64_t other, std::int64_t now_ns) {
  if (!recorder_.enabled()) return {};
  const auto stack = stack_now();
  const auto line = recorder_.has_lines() ? call_line(recorder_) : std::uint16_t{0};
  const auto fill = [&](FlightEntry& entry) {
    entry.line = line;
    if (message) entry.flags |= FlightEntry::kMessage;
    entry.collective_sequence = message ? other : sequence;
    entry.message_sequence = message ? sequence : other;
    entry.operation = operations_.fetch_add(1, std::memory_order_relaxed) + 1;
    entry.created_ns = now_ns;
  };
  const bool wants_details = recorder_.wants_details();
  const auto add_details = [&](FlightEntry& entry, const Request& request) {
    const auto details = details_of(request, entry);
    if (!details.empty()) recorder_.add_details(entry, details);
  };
  if (!batch) {
    auto entry = entry_of(requests.front());
    fill(entry);
    if (wants_details) add_details(entry, requests.front());
    return recorder_.begin(group_, {&entry, 1}, stack);
  }
  auto entries = entries_of(requests, true);
  for (auto& entry : entries) fill(entry);
  for (std::size_t i = 0; wants_details && i < requests.size(); ++i) add_details(entries[i], requests[i]);
  return recorder_.begin(group_, entries, stack);
}

RecordedOperation Recording::begin_replay(std::vector<FlightEntry> entries, std::int64_t now_ns) {
  const auto sequence = replays_.fetch_add(1, std::memory_order_relaxed) + 1;
  for (auto& entry : entries) {
    entry.flags |= FlightEntry::kReplayed;
    entry.collective_sequence = sequence;
    entry.operation = operations_.fetch_add(1, std::memory_order_relaxed) + 1;
    entry.created_ns = now_ns;
  }
  return recorder_.begin(group_, entries);
}

}  // namespace vccl
