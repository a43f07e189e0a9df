// Times the reduction loops, without ranks:
//
//   bench_kernels [dtypes=...] [ops=SUM,...] [ranks=2,4] [bytes=256K] [sets=avx512,avx2,portable]
//   [place=beside] [stores=plain] [ways=1] [unit=GB/s]
//
// `bytes` is the length of one input. All inputs must fit into the cache if the loops and not the memory are
// to be timed. With place=first the result replaces the first input. With stores=past_caches results are
// stored as those of long buffers are, so `bytes` should be large. `ways` interleaves. A figure is the GB/s
// of all that is read and written, the best of several runs; "memcpy" copies the same number of bytes. With
// unit=ns it is the nanoseconds of a call, for short inputs.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "csrc_pg/collectives/kernels/narrow_floats.hpp"
#include "csrc_pg/collectives/kernels/reduction.hpp"

using namespace vccl;

namespace {

constexpr int kOps = int(ReduceOp::premul_sum) + 1;
constexpr double kRunSeconds = 0.002;
constexpr int kRuns = 7;

struct Options {
  std::vector<std::string> dtypes, ops, sets;
  std::vector<std::size_t> ranks = {2, 4}, bytes = {256 * 1024};
  bool in_place = false, in_nanoseconds = false;
  LoopOptions loop;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

std::vector<std::size_t> sizes(const std::string& text) {
  std::vector<std::size_t> numbers;
  for (const auto& part : split(text)) {
    char* unit = nullptr;
    const double number = std::strtod(part.c_str(), &unit);
    numbers.push_back(std::size_t(number * (*unit == 'M' ? 1048576 : *unit == 'K' ? 1024 : 1)));
  }
  return numbers;
}

bool chosen(const std::vector<std::string>& names, const char* name) {
  return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

/// Returns the seconds of one call: the best of several runs of many calls.
template <class F>
double seconds(F call) {
  using Clock = std::chrono::steady_clock;
  const auto run = [&](int calls) {
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  int calls = 1;
  while (run(calls) < kRunSeconds) calls *= 2;
  double best = 1e9;
  for (int i = 0; i < kRuns; ++i) best = std::min(best, run(calls) / calls);
  return best;
}

/// A buffer that begins at a cache line, as torch's allocations do.
struct Buffer {
  std::vector<std::byte> memory;
  std::byte* data() { return memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64); }
};

/// Fills the buffer with small numbers of any dtype, so that no run meets more subnormals or NaNs than
/// another.
void fill(Buffer& buffer, std::size_t bytes, Dtype dtype, std::size_t seed) {
  const std::size_t count = bytes / size_of(dtype);
  buffer.memory.resize(bytes + 64);
  const auto put = [&](auto value_of) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto value = value_of(int((i * 7 + seed * 3) % 5 + 1));
      std::memcpy(buffer.data() + i * sizeof value, &value, sizeof value);
    }
  };
  switch (dtype) {
    case Dtype::float16:
      return put([](int n) { return from_float<Float16>(float(n)); });
    case Dtype::bfloat16:
      return put([](int n) { return from_float<Bfloat16>(float(n)); });
    case Dtype::float8_e4m3fn:
      return put([](int n) { return from_float<Float8E4M3>(float(n)); });
    case Dtype::float8_e5m2:
      return put([](int n) { return from_float<Float8E5M2>(float(n)); });
    case Dtype::float32:
      return put([](int n) { return float(n); });
    case Dtype::float64:
      return put([](int n) { return double(n); });
    case Dtype::complex64:
      return put([](int n) { return std::pair(float(n), float(n)); });
    case Dtype::complex128:
      return put([](int n) { return std::pair(double(n), double(n)); });
    default:
      return put([](int n) { return std::uint8_t(n); });
  }
}

void measure(const Options& options, Dtype dtype, ReduceOp op, std::size_t ranks, std::size_t bytes) {
  std::vector<Buffer> buffers(ranks + 1);
  std::vector<const std::byte*> inputs;
  std::vector<double> scalars(ranks, op == ReduceOp::premul_sum ? 0.5 : double(ranks));
  for (std::size_t i = 0; i < ranks; ++i)
    fill(buffers[i], bytes, dtype, i), inputs.push_back(buffers[i].data());
  buffers[ranks].memory.resize(bytes + 64);
  std::byte* const result = buffers[options.in_place ? 0 : ranks].data();
  const auto figure = [&](std::size_t moved, double seconds) {
    return options.in_nanoseconds ? 1e9 * seconds : 1e-9 * double(moved) / seconds;
  };
  std::printf("%-14s %-10s %2zu ranks %9zu B", to_string(dtype), to_string(op), ranks, bytes);
  for (const auto& set : instruction_sets()) {
    if (!chosen(options.sets, set.name)) continue;
    const auto* reduction = set.find(dtype, op);
    const double best = seconds([&] {
      reduction->many(result, inputs.data(), int(ranks), bytes / size_of(dtype), scalars.data(),
                      options.loop);
    });
    std::printf("  %s %6.1f", set.name, figure((ranks + 1) * bytes, best));
  }
  const double copy = seconds([&] {
    std::memcpy(buffers[ranks].data(), inputs[0], bytes);
    asm volatile("" ::: "memory");
  });
  std::printf("  memcpy %6.1f\n", figure(2 * bytes, copy));
  std::fflush(stdout);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto equals = argument.find('=');
    const std::string key = argument.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
    if (key == "dtypes")
      options.dtypes = split(value);
    else if (key == "ops")
      options.ops = split(value);
    else if (key == "sets")
      options.sets = split(value);
    else if (key == "ranks")
      options.ranks = sizes(value);
    else if (key == "bytes")
      options.bytes = sizes(value);
    else if (key == "place")
      options.in_place = value == "first";
    else if (key == "unit")
      options.in_nanoseconds = value == "ns";
    else if (key == "stores")
      options.loop.stores = value == "past_caches" ? Stores::past_caches : Stores::plain;
    else if (key == "ways")
      options.loop.ways = std::atoi(value.c_str());
    else
      std::fprintf(stderr, "unknown option %s\n", argv[i]), std::exit(2);
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  for (const Dtype dtype : kDtypes)
    for (int op = 0; op < kOps; ++op) {
      if (!chosen(options.dtypes, to_string(dtype)) || !chosen(options.ops, to_string(ReduceOp(op))))
        continue;
      if (!find_reduction(dtype, ReduceOp(op))) continue;
      for (const auto bytes : options.bytes)
        for (const auto ranks : options.ranks) measure(options, dtype, ReduceOp(op), ranks, bytes);
    }
}
