// Runs a case on one rank, with any communicator and in any memory.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "csrc_pg/collectives/run.hpp"
#include "tests/native/check.hpp"
#include "tests/native/collectives/reference.hpp"
#include "tests/native/transport/harness.hpp"

/// A rank's memory: either a card's, which peers map, or plain memory, which they cannot map.
class RankMemory {
 public:
  RankMemory(bool mapped, std::size_t bytes) {
    if (mapped)
      region_.emplace(bytes);
    else
      plain_.resize(bytes);
  }
  std::byte* base() { return region_ ? region_->base() : plain_.data(); }
  std::vector<vccl::Region> regions() const {
    return region_ ? std::vector{region_->region()} : std::vector<vccl::Region>();
  }

 private:
  std::optional<vccl::TestRegion> region_;
  std::vector<std::byte> plain_;
};

constexpr std::size_t kGuardBytes = 64;

/// Says where a rank's buffers lie in its memory, in bytes. One lies in the other if the case is in place;
/// else the input comes before the output. Guards lie around each.
struct Layout {
  std::size_t input, input_bytes, output, output_bytes, end;

  Layout(const reference::Case& c, int size, int rank) {
    using enum vccl::Collective;
    const std::size_t element = vccl::size_of(c.dtype);
    input_bytes = reference::input_count(c, size, rank) * element;
    output_bytes = reference::output_count(c, size, rank) * element;
    input = output = c.shift * element + kGuardBytes;
    if (!c.in_place || c.collective == all_to_all) {
      output = input + input_bytes + kGuardBytes;
    } else if (output_bytes > 0 && (c.collective == all_gather || c.collective == gather)) {
      input += reference::output_offset(c, rank, rank) * element;
    } else if (input_bytes > 0 && (c.collective == reduce_scatter || c.collective == scatter)) {
      output += reference::input_offset(c, rank, rank) * element;
    }
    end = std::max(input + input_bytes, output + output_bytes) + kGuardBytes;
  }
};

/// Returns the bytes of memory that play() needs for the case, on any rank.
inline std::size_t memory_for(const reference::Case& c, int size) {
  std::size_t bytes = 0;
  for (int rank = 0; rank < size; ++rank) bytes = std::max(bytes, Layout(c, size, rank).end);
  return bytes;
}

/// Holds the call of the case, with its counts.
struct CaseCall {
  std::vector<std::size_t> input_counts, output_counts;
  vccl::Call call;

  CaseCall(const reference::Case& c, int size, int rank)
      : call{c.collective, c.dtype, c.op, c.root, c.count} {
    call.factor = reference::factor_of(c, rank);
    if (!c.uneven) return;
    call.count = ~std::size_t(0);  // nobody may use it
    for (int other = 0; other < size; ++other) {
      if (c.collective != vccl::Collective::all_gather)
        input_counts.push_back(reference::chunk_count(c, rank, other));
      if (c.collective != vccl::Collective::reduce_scatter)
        output_counts.push_back(reference::chunk_count(c, other, rank));
    }
    call.input_counts = input_counts;
    call.output_counts = output_counts;
  }
  CaseCall(const CaseCall&) = delete;
};

/// Runs the case in `memory`, and checks that nothing but the output was written. Returns the output.
inline std::vector<std::byte> play(vccl::Communicator& communicator, const reference::Case& c,
                                   std::byte* memory) {
  constexpr std::byte kGuard{0x5a};
  const int size = communicator.size(), rank = communicator.rank();
  const Layout layout(c, size, rank);
  std::vector<std::byte> before(memory_for(c, size), kGuard);
  const auto input = reference::input_of(c, size, rank);
  if (!input.empty()) std::memcpy(before.data() + layout.input, input.data(), input.size());
  if (!before.empty()) std::memcpy(memory, before.data(), before.size());

  CaseCall prepared(c, size, rank);
  if (layout.input_bytes > 0) prepared.call.input = memory + layout.input;
  if (layout.output_bytes > 0) prepared.call.output = memory + layout.output;
  vccl::run(communicator, prepared.call, vccl::Deadline::in(vccl::Milliseconds(300'000)));

  std::vector<std::byte> output(memory + layout.output, memory + layout.output + layout.output_bytes);
  if (!output.empty()) std::memcpy(before.data() + layout.output, output.data(), output.size());
  if (std::memcmp(before.data(), memory, before.size()) != 0)
    throw check::Failure("something else than the output was written by " + c.text(size));
  return output;
}

/// Runs play(), and checks this rank's output.
inline void play_and_check(vccl::Communicator& communicator, const reference::Case& c, std::byte* memory) {
  const auto output = play(communicator, c, memory);
  reference::check_output(c, reference::inputs_of(c, communicator.size()), communicator.rank(),
                          output.data());
}

/// Checks that every rank's output of every case is right, and has the same bits where it should. `outputs`
/// is [rank][case].
inline void check_outputs(const std::vector<reference::Case>& cases,
                          const std::vector<std::vector<std::vector<std::byte>>>& outputs) {
  const int size = int(outputs.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto& c = cases[i];
    const auto inputs = reference::inputs_of(c, size);
    for (int rank = 0; rank < size; ++rank) {
      const auto& output = outputs[std::size_t(rank)].at(i);
      if (rank == 0 || !reference::ends_equal(c.collective))
        reference::check_output(c, inputs, rank, output.data());
      else if (outputs[0][i] != output)
        throw check::Failure("ranks 0 and " + std::to_string(rank) + " differ after " + c.text(size));
    }
  }
}
