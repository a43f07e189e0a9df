// What the parts of an operation cost, with forked processes as ranks: bench_ring [ranks] [hosts].
#include <algorithm>
#include <cstdlib>

#include "tests/native/transport/harness.hpp"
#include "tests/native/transport/zmq_library.hpp"

namespace vccl {
namespace {

constexpr Milliseconds kLimit{60'000};

/// Median of `rounds` calls in microseconds, each call repeated `inner` times.
template <class Call>
double median(int rounds, int inner, Call call) {
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const auto start = Clock::now();
    for (int j = 0; j < inner; ++j) call();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count() / inner);
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[static_cast<std::size_t>(rounds / 2)];
}

void measure(Store& store, int rank, int size, int hosts) {
  TestRegion region(1 << 20);
  CommunicatorConfig config = test_config(rank, size);
  config.regions = {region.region()};
  if (hosts > 1) config.host_id = std::to_string(rank % hosts);
  const auto start = Clock::now();
  auto c = Communicator::create(store, config);
  const double made = std::chrono::duration<double, std::milli>(Clock::now() - start).count();

  const auto empty = [&] {
    Operation operation(*c, {}, {}, Deadline::in(kLimit));
    operation.finish();
  };
  const int inner = hosts > 1 ? 20 : 100;
  const double gate = median(50, inner, empty);

  // A token of 8 bytes once round the ring, a hop at a time.
  Operation operation(*c, {}, region.span(0, 8), Deadline::in(kLimit));
  const double round = median(50, inner, [&] {
    if (c->ring_position() == 0) c->right().post(0, 8);
    c->left().take(0, 8);
    c->left().release();
    if (c->ring_position() != 0) c->right().post(0, 8);
  });
  operation.finish();
  if (rank == 0) {
    std::printf(
        "%d ranks, %d host(s): create %.1f ms, begin + finish %.2f us, 8 bytes once round the ring %.2f us\n",
        size, hosts, made, gate, round);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace vccl

int main(int argc, char** argv) {
  const int size = argc > 1 ? std::atoi(argv[1]) : 2;
  const int hosts = argc > 2 ? std::atoi(argv[2]) : 1;
  vccl::find_zmq_for_tests();
  vccl::FileStore store;
  vccl::run_processes(size, [&](int rank) { vccl::measure(store, rank, size, hosts); });
}
