// Times all_reduce between forked ranks: bench_all_reduce [ranks=2] [min=4] [max=64M] [mapped|staged]
// [float32|bfloat16].
//
// A measurement is one call, from a barrier to the end of the slowest rank; every rank writes its whole
// buffer anew between two calls, as a backward pass does.
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "csrc_pg/collectives/narrow_floats.hpp"
#include "csrc_pg/collectives/types.hpp"
#include "tests/native/collectives/play.hpp"
#include "tests/native/transport/harness.hpp"

using namespace vccl;

namespace {

constexpr int kMaxRanks = 16, kMaxCalls = 1000;

struct Results {
  double microseconds[kMaxRanks][kMaxCalls];
};

std::size_t parse_size(const char* text) {
  char* unit = nullptr;
  const double number = std::strtod(text, &unit);
  return std::size_t(number * (*unit == 'M' ? 1048576 : *unit == 'K' ? 1024 : 1));
}

void fill(std::byte* at, std::size_t count, Dtype dtype, float value) {
  if (dtype == Dtype::float32)
    std::fill_n(reinterpret_cast<float*>(at), count, value);
  else
    std::fill_n(reinterpret_cast<std::uint16_t*>(at), count, float_to_bfloat16(value));
}

bool all_equal(const std::byte* at, std::size_t count, Dtype dtype, float value) {
  for (std::size_t i = 0; i < count; ++i) {
    const float got = dtype == Dtype::float32
                          ? reinterpret_cast<const float*>(at)[i]
                          : bfloat16_to_float(reinterpret_cast<const std::uint16_t*>(at)[i]);
    if (got != value) return false;
  }
  return true;
}

// A core for each rank where there are enough: the scheduler may put two that spin on one.
void pin(int rank, int ranks) {
  if (ranks > int(std::thread::hardware_concurrency())) return;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(rank, &cores);
  sched_setaffinity(0, sizeof cores, &cores);
}

int calls_for(std::size_t bytes) {
  return int(std::clamp<std::size_t>((std::size_t(512) << 20) / (bytes + 1), 20, kMaxCalls));
}

void measure(Communicator& communicator, std::byte* memory, std::size_t bytes, Dtype dtype,
             Results& results) {
  const Deadline deadline = Deadline::in(Milliseconds(120'000));
  const std::size_t count = bytes / size_of(dtype);
  const int rank = communicator.rank(), size = communicator.size(), warm_up = 5;
  const Call call{Collective::all_reduce, dtype, ReduceOp::sum, -1, count, memory, memory};
  for (int i = -warm_up; i < calls_for(bytes); ++i) {
    fill(memory, count, dtype, float(rank + 1));
    run(communicator, {Collective::barrier}, deadline);
    const auto begin = Clock::now();
    run(communicator, call, deadline);
    const std::chrono::duration<double, std::micro> length = Clock::now() - begin;
    if (i >= 0) results.microseconds[rank][i] = length.count();
    if (i <= 0 && !all_equal(memory, count, dtype, float(size * (size + 1) / 2)))
      throw check::Failure("wrong result");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const std::size_t min = parse_size(argc > 2 ? argv[2] : "4"), max = parse_size(argc > 3 ? argv[3] : "64M");
  const bool staged = argc > 4 && std::string(argv[4]) == "staged";
  const Dtype dtype = argc > 5 && std::string(argv[5]) == "bfloat16" ? Dtype::bfloat16 : Dtype::float32;
  if (ranks < 1 || ranks > kMaxRanks || min == 0) return 2;

  // Written by the ranks, read by their parent.
  void* shared = mmap(nullptr, sizeof(Results), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  Results& results = *new (shared) Results();

  std::printf("all_reduce %s SUM, %d ranks, %s memory\n%12s %12s %12s %12s %12s\n", to_string(dtype), ranks,
              staged ? "staged" : "mapped", "bytes", "least us", "median us", "p90 us", "busbw GB/s");
  for (std::size_t bytes = min; bytes <= max; bytes *= 4) {
    FileStore store;
    run_processes(ranks, [&](int rank) {
      RankMemory memory(!staged, std::max<std::size_t>(bytes, 4096));
      CommunicatorConfig config = test_config(rank, ranks);
      config.regions = memory.regions();
      config.describe = describe;
      const auto communicator = Communicator::create(store, config);
      // Only now: the communicator counts the cores it may use.
      pin(rank, ranks);
      measure(*communicator, memory.base(), bytes, dtype, results);
      run(*communicator, {Collective::barrier}, Deadline::in(Milliseconds(20'000)));
    });
    std::vector<double> slowest;
    for (int i = 0; i < calls_for(bytes); ++i) {
      double longest = 0;
      for (int rank = 0; rank < ranks; ++rank) longest = std::max(longest, results.microseconds[rank][i]);
      slowest.push_back(longest);
    }
    std::sort(slowest.begin(), slowest.end());
    const double median = slowest[slowest.size() / 2];
    std::printf("%12zu %12.1f %12.1f %12.1f %12.2f\n", bytes, slowest[0], median,
                slowest[slowest.size() * 9 / 10], double(bytes) / median / 1e3 * 2 * (ranks - 1) / ranks);
    std::fflush(stdout);
  }
  return 0;
}
