// Times collectives between forked ranks, each algorithm in its turn:
//
//   bench_collectives [collective=all_reduce] [ranks=2] [sizes=4,1K,64K,1M,16M,64M] [algorithms=default,ring]
//                     [memory=mapped|staged] [dtype=float32|bfloat16] [in_place=yes|no] [turns=3]
//
// A size is the longest buffer of a rank, in bytes. A measurement is one call, from a barrier to the end of
// the slowest rank; every rank writes its whole input anew before a call, and its output where that lies
// elsewhere, and reads its output after it, as a training step does. Where the operation can be in place, it
// is. An algorithm of "default" is the selector's choice. Every turn measures every algorithm for a while, so
// that they see the same machine.
//
// What the memory allows is measured in the same run: every rank adds a long array to another.
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/past_caches.hpp"
#include "csrc_pg/collectives/kernels/narrow_floats.hpp"
#include "csrc_pg/collectives/run.hpp"
#include "tests/native/collectives/play.hpp"
#include "tests/native/transport/harness.hpp"

using namespace vccl;

namespace {

constexpr int kMaxRanks = 16, kMaxCalls = 400, kMaxSeries = 1024, kMaxPasses = 48;
constexpr int kPasses = 3;                      // for the memory's limit, in each turn
constexpr std::size_t kLimitFloats = 16 << 20;  // of an array for the memory's limit

struct Results {
  double microseconds[kMaxSeries][kMaxCalls];  // of one rank
  double limit[kMaxSeries][kMaxPasses];        // microseconds of a pass: of each size, some in each turn
  double copy[kMaxSeries][kMaxPasses];
};

struct Options {
  Collective collective = Collective::all_reduce;
  int ranks = 2, turns = 3;
  std::vector<std::size_t> sizes;
  std::vector<std::string> algorithms;
  bool mapped = true, in_place = true;
  Dtype dtype = Dtype::float32;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

std::size_t parse_size(const std::string& text) {
  char* unit = nullptr;
  const double number = std::strtod(text.c_str(), &unit);
  return std::size_t(number * (*unit == 'M' ? 1048576 : *unit == 'K' ? 1024 : 1));
}

Options parse(int argc, char** argv) {
  std::map<std::string, std::string> given{{"collective", "all_reduce"},
                                           {"ranks", "2"},
                                           {"sizes", "4,1K,64K,1M,16M,64M"},
                                           {"algorithms", "default,ring"},
                                           {"memory", "mapped"},
                                           {"dtype", "float32"},
                                           {"in_place", "yes"},
                                           {"turns", "3"}};
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const auto sign = text.find('=');
    if (sign == std::string::npos || !given.contains(text.substr(0, sign))) {
      std::printf("not an option: %s\n", argv[i]);
      std::exit(2);
    }
    given[text.substr(0, sign)] = text.substr(sign + 1);
  }
  Options options;
  for (int i = 0; i <= int(Collective::barrier); ++i)
    if (given["collective"] == to_string(Collective(i))) options.collective = Collective(i);
  options.ranks = std::clamp(std::atoi(given["ranks"].c_str()), 1, kMaxRanks);
  options.turns = std::clamp(std::atoi(given["turns"].c_str()), 1, kMaxPasses / kPasses);
  for (const auto& size : split(given["sizes"])) options.sizes.push_back(parse_size(size));
  options.algorithms = split(given["algorithms"]);
  options.mapped = given["memory"] != "staged";
  options.in_place = given["in_place"] != "no";
  if (given["dtype"] == "bfloat16") options.dtype = Dtype::bfloat16;
  return options;
}

// Gives each rank a core where there are enough: the scheduler may put two that spin on one.
void pin(int rank, int ranks) {
  if (ranks > int(std::thread::hardware_concurrency())) return;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(rank, &cores);
  sched_setaffinity(0, sizeof cores, &cores);
}

int calls_for(std::size_t bytes, int turns) {
  return int(std::clamp<std::size_t>((std::size_t(384) << 20) / (bytes + 1), 12, kMaxCalls)) / turns;
}

/// One rank of the bench.
class Rank {
 public:
  Rank(std::vector<FileStore>& stores, const Options& options, int rank, Results& results)
      : options_(options),
        results_(results),
        most_(*std::max_element(options.sizes.begin(), options.sizes.end()) / 4096 * 4096 + 8192),
        memory_(options.mapped, 2 * most_) {
    for (const auto& algorithm : options.algorithms) {
      CommunicatorConfig config = test_config(rank, options.ranks);
      config.regions = memory_.regions();
      config.describe = describe;
      const std::string choice = std::string(to_string(options.collective)) + ":" + algorithm;
      setenv("VCCL_ALGO", algorithm == "default" ? "" : choice.c_str(), 1);
      communicators_.push_back(Communicator::create(stores[communicators_.size()], config));
    }
    // Only now: the communicators count the cores they may use.
    pin(rank, options.ranks);
  }

  void run_all() {
    for (std::size_t size = 0; size < options_.sizes.size(); ++size) {
      const int calls = calls_for(options_.sizes[size], options_.turns);
      for (int turn = 0; turn < options_.turns; ++turn) {
        measure_limits(size, turn);
        for (std::size_t algorithm = 0; algorithm < communicators_.size(); ++algorithm)
          measure(*communicators_[algorithm], options_.sizes[size],
                  results_.microseconds[size * communicators_.size() + algorithm] + turn * calls, calls);
      }
    }
    barrier();
  }

 private:
  static Deadline deadline() { return Deadline::in(Milliseconds(120'000)); }
  void barrier() { run(*communicators_[0], {Collective::barrier}, deadline()); }

  Call call_for(std::size_t bytes) {
    using enum Collective;
    const int rank = communicators_[0]->rank();
    Call call{options_.collective, options_.dtype, ReduceOp::sum, has_root(options_.collective) ? 0 : -1};
    const std::size_t count = bytes / size_of(options_.dtype), n = std::size_t(options_.ranks);
    const bool has_chunks = call.collective == all_gather || call.collective == reduce_scatter ||
                            call.collective == gather || call.collective == scatter ||
                            call.collective == all_to_all;
    call.count = has_chunks ? std::max<std::size_t>(count / n, 1) : count;
    call.input = memory_.base();
    call.output = memory_.base() + (options_.in_place ? 0 : most_);
    if (!options_.in_place) return call;
    const std::size_t own = std::size_t(rank) * call.count * size_of(call.dtype);
    if (call.collective == all_gather || (call.collective == gather && rank == 0))
      call.input = memory_.base() + own;
    if (call.collective == reduce_scatter || (call.collective == scatter && rank == 0))
      call.output = memory_.base() + own;
    if (call.collective == all_to_all) call.output = memory_.base() + most_;
    return call;
  }

  void fill(const Call& call, const void* buffer, std::size_t count, float value) const {
    auto* at = static_cast<std::byte*>(const_cast<void*>(buffer));
    if (call.dtype == Dtype::float32)
      std::fill_n(reinterpret_cast<float*>(at), count, value);
    else
      std::fill_n(reinterpret_cast<std::uint16_t*>(at), count, from_float<Bfloat16>(value));
  }

  void read(const Call& call, std::size_t count) const {
    const auto* at = static_cast<const std::uint16_t*>(call.output);
    unsigned sum = 0;
    for (std::size_t i = 0; i < count * size_of(call.dtype) / 2; ++i) sum += at[i];
    asm volatile("" : : "r"(sum));
  }

  void check_sum(const Call& call) const {
    const float wanted = float(options_.ranks * (options_.ranks + 1) / 2);
    for (std::size_t i = 0; i < call.count; ++i) {
      const float got = call.dtype == Dtype::float32
                            ? static_cast<const float*>(call.output)[i]
                            : to_float<Bfloat16>(static_cast<const std::uint16_t*>(call.output)[i]);
      if (got != wanted) throw check::Failure("wrong result");
    }
  }

  static std::size_t input_count(const Call& call, int rank, int size) {
    using enum Collective;
    const bool many = call.collective == reduce_scatter || call.collective == all_to_all;
    if (many || (call.collective == scatter && rank == call.root)) return call.count * std::size_t(size);
    if (call.collective == scatter || (call.collective == broadcast && rank != call.root)) return 0;
    return call.count;
  }
  static std::size_t output_count(const Call& call, int rank, int size) {
    using enum Collective;
    const bool many = call.collective == all_gather || call.collective == all_to_all;
    if (many || (call.collective == gather && rank == call.root)) return call.count * std::size_t(size);
    if ((call.collective == gather || call.collective == reduce) && rank != call.root) return 0;
    return call.count;
  }

  void measure(Communicator& communicator, std::size_t bytes, double* times, int calls) {
    const Call call = call_for(bytes);
    const int rank = communicator.rank(), size = communicator.size(), warm_up = 4;
    for (int i = -warm_up; i < calls; ++i) {
      fill(call, call.input, input_count(call, rank, size), float(rank + 1));
      if (!options_.in_place) fill(call, call.output, output_count(call, rank, size), 0);
      barrier();
      const auto begin = Clock::now();
      run(communicator, call, deadline());
      const std::chrono::duration<double, std::micro> length = Clock::now() - begin;
      if (i >= 0) times[i] = length.count();
      // Whoever is done must not keep others from their cores that are not.
      barrier();
      if (i < 0 && call.collective == Collective::all_reduce) check_sum(call);
      read(call, output_count(call, rank, size));
    }
  }

  template <class Pass>
  double time_of(Pass pass) {
    barrier();
    const auto begin = Clock::now();
    pass();
    const std::chrono::duration<double, std::micro> length = Clock::now() - begin;
    barrier();
    return length.count();
  }

  void measure_limits(std::size_t size, int turn) {
    for (int pass = turn * kPasses; pass < (turn + 1) * kPasses; ++pass) {
      float* __restrict x = x_.data(), * __restrict y = y_.data();
      results_.limit[size][pass] = time_of([=] {
        for (std::size_t i = 0; i < kLimitFloats; ++i) y[i] += x[i];
      });
      asm volatile("" : : "r"(y) : "memory");
      results_.copy[size][pass] =
          time_of([=] { base::copy_past_caches(x, y, kLimitFloats * sizeof(float)); });
    }
  }

  const Options& options_;
  Results& results_;
  const std::size_t most_;
  RankMemory memory_;
  std::vector<float> x_ = std::vector<float>(kLimitFloats, 1.0f), y_ = std::vector<float>(kLimitFloats, 2.0f);
  std::vector<std::unique_ptr<Communicator>> communicators_;
};

// Returns the bytes that all ranks together must read and write, with buffers of `bytes` bytes.
double least_traffic(const Options& options, double bytes) {
  using enum Collective;
  const double n = options.ranks, copies = options.in_place ? n - 1 : n;
  switch (options.collective) {
    case all_reduce:
      return 2 * n * bytes;
    case reduce_scatter:
    case reduce:
      return (n + 1) * bytes;
    case broadcast:
      return n * bytes;
    case all_gather:
      return (1 + copies) * bytes;
    case all_to_all:
      return 2 * n * bytes;
    default:
      return 2 * bytes * copies / n;
  }
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Returns the bytes a microsecond of all ranks together, by the time of the slowest.
double speed(const Options& options, const Results* results, std::size_t size, bool copy) {
  std::vector<double> times;
  for (int pass = 0; pass < options.turns * kPasses; ++pass) {
    double longest = 0;
    for (int rank = 0; rank < options.ranks; ++rank)
      longest = std::max(longest, (copy ? results[rank].copy : results[rank].limit)[size][pass]);
    times.push_back(longest);
  }
  return (copy ? 2.0 : 3.0) * kLimitFloats * sizeof(float) * options.ranks / median(times);
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  // The ranks write this, and their parent reads it.
  void* shared = mmap(nullptr, sizeof(Results) * kMaxRanks, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (shared == MAP_FAILED) return 1;
  auto* results = static_cast<Results*>(shared);
  std::vector<FileStore> stores(options.algorithms.size());
  run_processes(options.ranks, [&](int rank) { Rank(stores, options, rank, results[rank]).run_all(); });

  std::printf("%s, %s, %d ranks, %s memory%s\n", to_string(options.collective), to_string(options.dtype),
              options.ranks, options.mapped ? "mapped" : "staged", options.in_place ? "" : ", not in place");
  std::printf("%12s %10s %12s %12s %12s %12s %12s %12s %12s\n", "bytes", "algorithm", "least us", "median us",
              "p90 us", "GB/s", "y += x GB/s", "copy GB/s", "% of y += x");
  for (std::size_t size = 0; size < options.sizes.size(); ++size)
    for (std::size_t algorithm = 0; algorithm < options.algorithms.size(); ++algorithm) {
      const int calls = calls_for(options.sizes[size], options.turns) * options.turns;
      std::vector<double> slowest;
      for (int i = 0; i < calls; ++i) {
        double longest = 0;
        for (int rank = 0; rank < options.ranks; ++rank)
          longest =
              std::max(longest, results[rank].microseconds[size * options.algorithms.size() + algorithm][i]);
        slowest.push_back(longest);
      }
      std::sort(slowest.begin(), slowest.end());
      const double median = slowest[slowest.size() / 2], bytes = double(options.sizes[size]);
      const double limit = speed(options, results, size, false), copy = speed(options, results, size, true);
      std::printf("%12zu %10s %12.2f %12.2f %12.2f %12.2f %12.1f %12.1f %12.0f\n", options.sizes[size],
                  options.algorithms[algorithm].c_str(), slowest[0], median, slowest[slowest.size() * 9 / 10],
                  bytes / median / 1e3, limit / 1e3, copy / 1e3,
                  100 * least_traffic(options, bytes) / median / limit);
    }
  return 0;
}
