// all_to_all_vdev and its 2-D forms, whose splits are elements of a tensor on the card: the ranks learn them
// once the stream has come to the operator, so the host waits for nothing. ("vdev" in these names is torch's
// word for splits on the device.)
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "base/text.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/registration.hpp"
#include "csrc_pg/arguments/torch_types.hpp"
#include "csrc_pg/collectives/run.hpp"
#include "csrc_pg/symmetric/allocations.hpp"
#include "csrc_pg/symmetric/operators.hpp"
#include "csrc_pg/tasks/gather_numbers.hpp"

namespace vccl::symmetric {
namespace {

/// In which order the chunks of a buffer lie.
enum class Order : std::uint8_t {
  by_rank,    // those of rank 0, each expert's, then those of rank 1
  by_expert,  // those of expert 0, each rank's, then those of expert 1
};

/// Describes one exchange. A chunk is what one rank sends to one expert of another rank; there are `experts`
/// of them on each rank.
struct Exchange {
  const char* name;
  std::int64_t ranks, rank, experts;
  std::size_t row_bytes;
  Order input_order, output_order;
  bool offsets_given;  // the second row of the input's splits has the offsets
  std::int64_t align;  // of each expert's part of the output, in rows; 0 for none
  const std::int64_t* in_splits;
  std::int64_t* out_splits_offsets;
  const std::byte* input;
  std::byte* output;
  std::int64_t input_rows, output_rows;
  std::byte *packed_input, *packed_output;  // null where the buffer is packed already

  std::int64_t chunks() const { return ranks * experts; }
  std::size_t index(Order order, std::int64_t rank_of_chunk, std::int64_t expert) const {
    return static_cast<std::size_t>(order == Order::by_rank ? rank_of_chunk * experts + expert
                                                            : expert * ranks + rank_of_chunk);
  }
};

[[noreturn]] void fail(Communicator& communicator, const Exchange& exchange, const std::string& what) {
  const auto text = base::text(communicator.own_text_in_group(), ": ", exchange.name, ": ", what);
  communicator.fail(ErrorCode::invalid, text);
  communicator.check();
  throw Error(ErrorCode::invalid, text);
}

/// Returns the splits of all ranks, by rank, then by the rank to which the chunk goes, then by expert.
Numbers gather_splits(Communicator& communicator, const Deadline& deadline, const Exchange& exchange) {
  Numbers own;
  for (std::int64_t to = 0; to < exchange.ranks; ++to)
    for (std::int64_t expert = 0; expert < exchange.experts; ++expert)
      own.push_back(exchange.in_splits[exchange.index(exchange.input_order, to, expert)]);
  Numbers all = gather_numbers(communicator, deadline, own);
  for (const auto split : all)
    if (split < 0) fail(communicator, exchange, base::text("a split is negative: ", split));
  return all;
}

/// Returns where the chunks of the output begin, in rows, in the output's order.
Numbers output_offsets(const Exchange& exchange, const Numbers& splits) {
  Numbers offsets;
  std::int64_t next = 0;
  for (std::size_t i = 0; i < splits.size(); ++i) {
    const bool ends_part = (i + 1) % static_cast<std::size_t>(exchange.ranks) == 0;
    const std::int64_t begin = next;
    offsets.push_back(begin);
    next += splits[i];
    if (exchange.align == 0 || exchange.output_order != Order::by_expert || !ends_part) continue;
    // As on CUDA, an expert that gets nothing has a part as well: grouped products take no empty ones.
    const std::int64_t part_begin = offsets[i + 1 - static_cast<std::size_t>(exchange.ranks)];
    const std::int64_t length = std::max<std::int64_t>(next - part_begin, 1);
    next = part_begin + (length + exchange.align - 1) / exchange.align * exchange.align;
  }
  return offsets;
}

/// Copies the chunks of the input one after the other, by rank.
void pack(Communicator& communicator, const Exchange& exchange) {
  std::byte* to = exchange.packed_input;
  std::int64_t rows = 0;
  for (std::int64_t rank = 0; rank < exchange.ranks; ++rank) {
    for (std::int64_t expert = 0; expert < exchange.experts; ++expert) {
      const auto i = exchange.index(exchange.input_order, rank, expert);
      const std::int64_t split = exchange.in_splits[i], offset = exchange.in_splits[exchange.chunks() + i];
      rows += split;
      if (offset < 0 || split > exchange.input_rows - offset || rows > exchange.input_rows)
        fail(communicator, exchange,
             base::text("the chunk of ", split, " rows at row ", offset,
                        " lies outside of the input, which has ", exchange.input_rows, " rows"));
      const auto bytes = static_cast<std::size_t>(split) * exchange.row_bytes;
      std::memcpy(to, exchange.input + static_cast<std::size_t>(offset) * exchange.row_bytes, bytes);
      to += bytes;
    }
  }
}

void run_exchange(Communicator& communicator, const Deadline& deadline, const Exchange& exchange) {
  const Numbers all = gather_splits(communicator, deadline, exchange);
  const auto ranks = static_cast<std::size_t>(exchange.ranks),
             experts = static_cast<std::size_t>(exchange.experts);
  const auto own = static_cast<std::size_t>(exchange.rank);
  const auto split_of = [&](std::size_t from, std::size_t to, std::size_t expert) {
    return all[(from * ranks + to) * experts + expert];
  };
  std::vector<std::size_t> send(ranks), receive(ranks);
  Numbers splits(ranks * experts);
  std::int64_t sent = 0;
  for (std::size_t other = 0; other < ranks; ++other) {
    for (std::size_t expert = 0; expert < experts; ++expert) {
      sent += split_of(own, other, expert);
      send[other] += static_cast<std::size_t>(split_of(own, other, expert)) * exchange.row_bytes;
      receive[other] += static_cast<std::size_t>(split_of(other, own, expert)) * exchange.row_bytes;
      splits[exchange.index(exchange.output_order, static_cast<std::int64_t>(other),
                            static_cast<std::int64_t>(expert))] = split_of(other, own, expert);
    }
  }
  const Numbers offsets = output_offsets(exchange, splits);
  for (std::size_t i = 0; i < splits.size(); ++i)
    if (offsets[i] + splits[i] > exchange.output_rows)
      fail(communicator, exchange,
           base::text("the output has ", exchange.output_rows, " rows, and chunk ", i, " ends at row ",
                      offsets[i] + splits[i], ". Make the output larger"));
  if (sent > exchange.input_rows)
    fail(communicator, exchange,
         base::text("the splits have ", sent, " rows together, and the input has ", exchange.input_rows));
  if (exchange.packed_input) pack(communicator, exchange);

  Call call{.collective = Collective::all_to_all};
  call.dtype = Dtype::uint8;
  call.input = exchange.packed_input ? exchange.packed_input : exchange.input;
  call.output = exchange.packed_output ? exchange.packed_output : exchange.output;
  call.input_counts = send;
  call.output_counts = receive;
  run(communicator, call, deadline);

  if (exchange.packed_output) {
    const std::byte* from = exchange.packed_output;
    for (std::int64_t rank = 0; rank < exchange.ranks; ++rank) {
      for (std::int64_t expert = 0; expert < exchange.experts; ++expert) {
        const auto i = exchange.index(exchange.output_order, rank, expert);
        const auto bytes = static_cast<std::size_t>(splits[i]) * exchange.row_bytes;
        std::memcpy(exchange.output + static_cast<std::size_t>(offsets[i]) * exchange.row_bytes, from, bytes);
        from += bytes;
      }
    }
  }
  std::copy(splits.begin(), splits.end(), exchange.out_splits_offsets);
  std::copy(offsets.begin(), offsets.end(), exchange.out_splits_offsets + exchange.chunks());
}

void check_numbers(const char* name, const char* argument, const at::Tensor& numbers, at::IntArrayRef sizes) {
  TORCH_CHECK(numbers.scalar_type() == at::kLong && numbers.is_contiguous() && numbers.sizes() == sizes, name,
              ": ", argument, " must be contiguous, of int64 and of the shape ", sizes, ", and it is of ",
              numbers.scalar_type(), " and of the shape ", numbers.sizes());
}

/// Launches an exchange. `exchange` has the name, the orders and the alignment; this function fills in the
/// rest.
void launch(Exchange exchange, const at::Tensor& input, at::Tensor& out, const at::Tensor& in_splits,
            at::Tensor& out_splits_offsets, const std::string& group) {
  const char* name = exchange.name;
  handle_of(input, group, name, "input");
  handle_of(out, group, name, "out");
  const auto members = group_of(group);
  exchange.ranks = members->getSize();
  exchange.rank = members->getRank();
  const std::int64_t chunks = in_splits.size(-1);
  TORCH_CHECK(chunks % exchange.ranks == 0 && chunks > 0, name, ": there are ", chunks,
              " splits, which must be a multiple of the ", exchange.ranks, " ranks");
  exchange.experts = chunks / exchange.ranks;
  if (exchange.offsets_given)
    check_numbers(name, "in_splits_offsets", in_splits, {2, chunks});
  else
    check_numbers(name, "in_splits", in_splits, {chunks});
  check_numbers(name, "out_splits_offsets", out_splits_offsets, {2, chunks});
  TORCH_CHECK(input.dim() > 0 && out.dim() == input.dim() && input.is_contiguous() && out.is_contiguous() &&
                  input.sizes().slice(1) == out.sizes().slice(1) && input.scalar_type() == out.scalar_type(),
              name, ": input and out must be contiguous, of one dtype, and with rows of one shape; they are ",
              input.scalar_type(), " of the shape ", input.sizes(), ", and ", out.scalar_type(),
              " of the shape ", out.sizes());
  exchange.row_bytes = input.element_size();
  for (const auto size : input.sizes().slice(1)) exchange.row_bytes *= static_cast<std::size_t>(size);
  exchange.input_rows = input.size(0);
  exchange.output_rows = out.size(0);

  CollectivePlan plan;
  exchange.in_splits = static_cast<const std::int64_t*>(plan.read(in_splits));
  exchange.input = static_cast<const std::byte*>(plan.read(input));
  exchange.output = static_cast<std::byte*>(plan.write(out));
  exchange.out_splits_offsets = static_cast<std::int64_t*>(plan.write(out_splits_offsets));
  const auto scratch = [&](const at::Tensor& like) {
    return static_cast<std::byte*>(
        plan.write(at::empty(like.sizes(), like.options(), at::MemoryFormat::Contiguous)));
  };
  if (exchange.offsets_given) exchange.packed_input = scratch(input);
  if (exchange.output_order == Order::by_expert && chunks > exchange.ranks)
    exchange.packed_output = scratch(out);
  plan.add([exchange](Communicator& communicator, const Deadline& deadline) {
    run_exchange(communicator, deadline, exchange);
  });
  members->launch_plan(name, {input, in_splits}, {out, out_splits_offsets}, std::move(plan));
}

void all_to_all(const at::Tensor& input, at::Tensor& out, const at::Tensor& in_splits,
                at::Tensor& out_splits_offsets, std::string group) {
  Exchange exchange{.name = "all_to_all_vdev"};
  TORCH_CHECK(in_splits.dim() == 1 && in_splits.size(0) == group_of(group)->getSize(), exchange.name,
              ": in_splits must have one split for each rank, and has the shape ", in_splits.sizes());
  launch(exchange, input, out, in_splits, out_splits_offsets, group);
}

void all_to_all_2d(const at::Tensor& input, at::Tensor& out, const at::Tensor& in_splits,
                   at::Tensor& out_splits_offsets, std::string group,
                   std::optional<std::int64_t> major_align) {
  Exchange exchange{.name = "all_to_all_vdev_2d", .output_order = Order::by_expert};
  exchange.align = major_align.value_or(0);
  TORCH_CHECK(!major_align || *major_align > 0, exchange.name, ": major_align must be positive, and is ",
              exchange.align);
  TORCH_CHECK(in_splits.dim() == 1, exchange.name, ": in_splits must have one dimension");
  launch(exchange, input, out, in_splits, out_splits_offsets, group);
}

void all_to_all_2d_offset(const at::Tensor& input, at::Tensor& out, const at::Tensor& in_splits_offsets,
                          at::Tensor& out_splits_offsets, std::string group) {
  Exchange exchange{
      .name = "all_to_all_vdev_2d_offset", .input_order = Order::by_expert, .offsets_given = true};
  TORCH_CHECK(in_splits_offsets.dim() == 2, exchange.name, ": in_splits_offsets must have two dimensions");
  launch(exchange, input, out, in_splits_offsets, out_splits_offsets, group);
}

VDEV_LIBRARY_IMPL(symm_mem, vdev::dense_key(), m) {
  m.impl("all_to_all_vdev", kernel<&all_to_all>());
  m.impl("all_to_all_vdev_2d", kernel<&all_to_all_2d>());
  m.impl("all_to_all_vdev_2d_offset", kernel<&all_to_all_2d_offset>());
}

}  // namespace
}  // namespace vccl::symmetric
