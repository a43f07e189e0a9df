// What messages between two forked ranks cost: bench_messages [mapped|staged] [pairs]. `pairs` pairs of ranks
// are busy at once. One way: from the call of send and receive until both are done; both ways: each of the
// two sends and receives at once. Buffers are written before and read after each call.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "tests/native/transport/harness.hpp"
#include "transport/messages.hpp"

namespace vccl {
namespace {

constexpr Milliseconds kLimit{60'000};
constexpr std::size_t kMost = std::size_t(16) << 20;

class Pending {
 public:
  Messages::Done done() {
    left_.fetch_add(1);
    return [this](int, const Error* error) {
      if (error) std::printf("%s\n", error->what());
      left_.fetch_sub(1);
      left_.notify_one();
    };
  }
  void wait() {
    for (int left = left_.load(); left > 0; left = left_.load()) left_.wait(left);
  }

 private:
  std::atomic<int> left_{0};
};

struct Times {
  double median, p90;
};

Times measure(Communicator& c, std::span<std::byte> out, std::span<std::byte> in, bool both, int calls) {
  const bool sends = both || c.rank() % 2 == 0, receives = both || c.rank() % 2 == 1;
  const Signature signature{.collective = 9, .count = out.size()};
  std::vector<double> times;
  Pending pending;
  unsigned sum = 0;
  for (int i = -3; i < calls; ++i) {
    std::memset(out.data(), i, out.size());
    Operation(c, Announcement{}, Deadline::in(kLimit)).finish();
    const auto start = Clock::now();
    if (receives) c.messages().receive(c.rank() ^ 1, 1, signature, in, Deadline::in(kLimit), pending.done());
    if (sends) c.messages().send(c.rank() ^ 1, 1, signature, out, Deadline::in(kLimit), pending.done());
    pending.wait();
    Operation(c, Announcement{}, Deadline::in(kLimit)).finish();
    if (i >= 0) times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    for (std::size_t at = 0; receives && at < in.size(); at += 8) sum += unsigned(in[at]);
  }
  asm volatile("" : : "r"(sum));
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[times.size() * 9 / 10]};
}

void run_rank(Store& store, int rank, int size, bool mapped) {
  TestRegion region(2 * kMost);
  std::vector<std::byte> memory(mapped ? 0 : 2 * kMost);
  std::byte* base = mapped ? region.base() : memory.data();
  CommunicatorConfig config = test_config(rank, size);
  if (mapped) config.regions = {region.region()};
  const auto c = Communicator::create(store, config);
  for (const std::size_t bytes :
       {std::size_t(4), std::size_t(4096), std::size_t(16) << 10, std::size_t(64) << 10,
        std::size_t(256) << 10, std::size_t(1) << 20, std::size_t(4) << 20, kMost}) {
    const int calls = bytes > (1 << 20) ? 20 : 100;
    const Times one = measure(*c, {base, bytes}, {base + kMost, bytes}, false, calls);
    const Times both = measure(*c, {base, bytes}, {base + kMost, bytes}, true, calls);
    if (rank == 0)
      std::printf("%9zu bytes: one way %9.1f us (p90 %9.1f), both ways %9.1f us (p90 %9.1f)\n", bytes,
                  one.median, one.p90, both.median, both.p90);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace vccl

int main(int argc, char** argv) {
  const bool mapped = argc > 1 && std::string(argv[1]) == "mapped";
  const int pairs = argc > 2 ? std::max(std::atoi(argv[2]), 1) : 1;
  vccl::FileStore store;
  vccl::run_processes(2 * pairs, [&](int rank) { vccl::run_rank(store, rank, 2 * pairs, mapped); });
}
