// Ranks that are killed in the middle of a collective: the others get an error soon, and nothing stays
// behind.
#include <dirent.h>

#include <atomic>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "csrc_pg/collectives/run.hpp"
#include "tests/native/check.hpp"
#include "tests/native/collectives/play.hpp"
#include "tests/native/transport/harness.hpp"
#include "tests/native/transport/zmq_library.hpp"

using namespace vccl;

namespace {

std::set<std::string> list(const char* folder) {
  std::set<std::string> names;
  DIR* directory = opendir(folder);
  CHECK(directory != nullptr);
  while (const dirent* entry = readdir(directory)) names.insert(entry->d_name);
  closedir(directory);
  return names;
}

// Runs collectives of all kinds and lengths until one fails, and checks the error.
void collectives_until_error(Store& store, int rank, int size, int hosts, std::uint64_t seed,
                             std::atomic<int>& ready) {
  constexpr std::size_t kBytes = 1 << 20;
  RankMemory memory(seed % 3 != 0, 2 * kBytes * std::size_t(size));
  CommunicatorConfig config = test_config(rank, size);
  config.regions = memory.regions();
  config.describe = describe;
  find_zmq_for_tests();
  if (hosts > 1) config.host_id = "host" + std::to_string(rank % hosts);
  const auto communicator = Communicator::create(store, config);
  ready.fetch_add(1);
  std::mt19937_64 random(seed);
  try {
    for (;;) {
      Call call;
      call.collective = Collective(random() % (int(Collective::barrier) + 1));
      call.dtype = Dtype::float32;
      call.root = int(random() % std::uint64_t(size));
      call.count = random() % 2 ? random() % 64 : random() % (kBytes / 4);
      call.output = memory.base();
      call.input = memory.base() + kBytes * std::size_t(size);
      // Far longer than a death may go unnoticed; a timeout would be the wrong error.
      run(*communicator, call, Deadline::in(Milliseconds(300'000)));
    }
  } catch (const Error& error) {
    CHECK(communicator->failed());
    // Whoever leaves because of the death is reported as such to those who have not seen it yet.
    if (error.code() != ErrorCode::peer_dead && error.code() != ErrorCode::peer_left) throw;
  }
}

void kill_one(std::uint64_t seed, int hosts) {
  std::mt19937_64 random(seed);
  const int size = 2 + int(random() % 3), victim = int(random() % std::uint64_t(size));
  FileStore store;
  const std::unique_ptr<void, void (*)(void*)> page(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0),
      [](void* p) { munmap(p, 4096); });
  auto& ready = *new (page.get()) std::atomic<int>(0);
  Processes processes(size, [&](int rank) {
    collectives_until_error(store, rank, size, std::min(hosts, size), seed, ready);
  });
  const auto deadline = Deadline::in(Milliseconds(300'000));
  while (ready.load() < size) {
    if (deadline.passed()) throw check::Failure("the group does not come together");
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 10'000));
  kill(processes.pid(victim), SIGKILL);
  processes.check_ends(victim);
}

void kill_many(int runs, int hosts) {
  const auto descriptors = list("/proc/self/fd");
  for (int i = 0; i < runs; ++i) kill_one(std::uint64_t(i) * 7919 + std::uint64_t(hosts), hosts);
  for (const auto& name : list("/dev/shm")) CHECK(name.find("vccl") == std::string::npos);
  CHECK(list("/proc/self/fd") == descriptors);
  CHECK(waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD);
}

}  // namespace

TEST(two_hundred_deaths_on_one_host) {
  kill_many(200, 1);
}
TEST(deaths_across_hosts) {
  kill_many(20, 2);
}

TEST_MAIN
