// Groups of real communicators with threads as ranks, for cases of all kinds.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "csrc_pg/collectives/run.hpp"
#include "tests/native/check.hpp"
#include "tests/native/collectives/play.hpp"
#include "tests/native/collectives/reference.hpp"
#include "tests/native/transport/cores.hpp"
#include "tests/native/transport/harness.hpp"
#include "tests/native/transport/zmq_library.hpp"

namespace vccl {

using reference::Case;

// The thread sanitizer does not see that a message over a socket orders what came before it: in the ring of
// all ranks, the right neighbour has read a block before the block's result comes back by way of another
// host. So under that sanitizer peers' memory is read in place on one host only, unless a test says
// otherwise.
#if defined(__SANITIZE_THREAD__)
constexpr bool kMapAcrossHosts = false;
#else
constexpr bool kMapAcrossHosts = true;
#endif

struct World {
  int size = 2;
  int mapped = 0;               // bit r: rank r's memory can be mapped
  int hosts = 1;                // rank r pretends to be on host r % hosts, or on the one that `layout` says
  std::string algorithms = {};  // VCCL_ALGO
  std::vector<int> cores = {};  // that all ranks are bound to; empty: as they are
  bool maps_across = kMapAcrossHosts;  // whether memory is mapped where there are several hosts
  std::string layout = {};             // "AAB": ranks 0 and 1 are on one host, and rank 2 on another

  std::string host_of(int rank) const {
    return layout.empty() ? std::to_string(rank % hosts) : std::string(1, layout.at(std::size_t(rank)));
  }
};

constexpr Milliseconds kLimit{300'000};

// Returns whether a rank's memory is to be mapped.
inline bool is_mapped(const World& world, int rank) {
  return ((world.mapped >> rank) & 1) && (world.maps_across || world.hosts == 1);
}

// Joins the group, whose peers may map `regions`, and runs the body; the body's failure becomes everybody's.
inline void as_member(Store& store, const World& world, int rank, const std::vector<Region>& regions,
                      const std::function<void(Communicator&)>& body) {
  CommunicatorConfig config = test_config(rank, world.size);
  config.regions = regions;
  config.describe = describe;
  config.describe_refusal = describe_nonfinite;
  config.algorithms = world.algorithms;
  if (!world.cores.empty()) bind_to(world.cores);
  find_zmq_for_tests();
  if (world.hosts > 1) config.host_id = "host" + world.host_of(rank);
  const auto communicator = Communicator::create(store, config);
  try {
    body(*communicator);
    // Nobody leaves while somebody is still in the last case.
    if (!communicator->failed()) run(*communicator, {Collective::barrier}, Deadline::in(kLimit));
  } catch (const std::exception& error) {
    communicator->abort(error.what());
    throw;
  }
}

// Does the same with `bytes` bytes of memory for each rank. Where only some ranks' memory is to be mapped,
// the others hand over memory that they do not use: what they have handed over is known beforehand, what they
// use is not.
inline void as_rank(Store& store, const World& world, int rank, std::size_t bytes,
                    const std::function<void(Communicator&, std::byte*)>& body) {
  RankMemory memory(is_mapped(world, rank), std::max<std::size_t>(bytes, 4096));
  const bool hands_over = world.mapped != 0 && (world.maps_across || world.hosts == 1);
  const RankMemory other(hands_over, 4096);
  as_member(store, world, rank, is_mapped(world, rank) ? memory.regions() : other.regions(),
            [&](Communicator& communicator) { body(communicator, memory.base()); });
}

inline void play_all(const World& world, const std::vector<Case>& cases) {
  MemoryStore store;
  std::size_t most = 0;
  for (const auto& c : cases) most = std::max(most, memory_for(c, world.size));
  std::vector<std::vector<std::vector<std::byte>>> outputs(static_cast<std::size_t>(world.size));
  run_threads(world.size, [&](int rank) {
    as_rank(store, world, rank, most, [&](Communicator& communicator, std::byte* memory) {
      for (const auto& c : cases) outputs[std::size_t(rank)].push_back(play(communicator, c, memory));
    });
  });
  check_outputs(cases, outputs);
}

inline void play_random(std::uint64_t seed, const World& world, int how_many) {
  play_all(world, reference::random_cases(seed, world.size, how_many, 1 << 20));
}

}  // namespace vccl
