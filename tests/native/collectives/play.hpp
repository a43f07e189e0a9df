// One rank's part of a case, on any communicator and in any memory.
#pragma once

#include <cstring>
#include <optional>
#include <vector>

#include "csrc_pg/collectives/types.hpp"
#include "tests/native/check.hpp"
#include "tests/native/collectives/reference.hpp"
#include "tests/native/transport/harness.hpp"

/// A rank's memory: a card's, which peers map, or plain memory, which they cannot.
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

/// Bytes of memory that play() needs for the case.
inline std::size_t memory_for(const reference::Case& c, int size) {
  return reference::output_bytes(c, size) + c.shift * vccl::size_of(c.dtype) + 2 * kGuardBytes;
}

/// Runs the case with its output in `memory`, between guards, and checks that nothing else was written.
/// Returns the output.
inline std::vector<std::byte> play(vccl::Communicator& communicator, const reference::Case& c,
                                   std::byte* memory) {
  using vccl::Collective;
  constexpr std::byte kGuard{0x5a};
  const int size = communicator.size(), rank = communicator.rank();
  const std::size_t bytes = reference::output_bytes(c, size),
                    before = c.shift * vccl::size_of(c.dtype) + kGuardBytes;
  const std::size_t part = c.collective == Collective::barrier ? 0 : c.count * vccl::size_of(c.dtype);
  std::memset(memory, int(kGuard), memory_for(c, size));
  std::byte* output = memory + before;
  std::byte* own = output + (c.collective == Collective::all_gather ? std::size_t(rank) * part : 0);
  std::vector<std::byte> input = reference::input_of(c, rank);
  const auto original = input;

  vccl::Call call{c.collective, c.dtype, c.op, c.root, c.count, input.data(), output};
  const bool brings = c.collective != Collective::broadcast || rank == c.root;
  if (!brings) {
    call.input = nullptr;
  } else if (c.in_place) {
    call.input = own;
    if (part > 0) std::memcpy(own, input.data(), part);
  }
  vccl::run(communicator, call, vccl::Deadline::in(vccl::Milliseconds(60'000)));

  for (std::size_t i = 0; i < before; ++i) CHECK(memory[i] == kGuard);
  for (std::size_t i = before + bytes; i < memory_for(c, size); ++i) CHECK(memory[i] == kGuard);
  CHECK(input == original);
  return {output, output + bytes};
}

/// Whether every rank's output of every case is right, and the same bits. `outputs` is [rank][case].
inline void check_outputs(const std::vector<reference::Case>& cases,
                          const std::vector<std::vector<std::vector<std::byte>>>& outputs) {
  const int size = int(outputs.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    reference::check_output(cases[i], size, outputs[0].at(i).data());
    for (std::size_t rank = 1; rank < outputs.size(); ++rank)
      if (outputs[0][i] != outputs[rank].at(i))
        throw check::Failure("ranks 0 and " + std::to_string(rank) + " differ after " + cases[i].text(size));
  }
}
