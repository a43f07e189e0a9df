// Groups that come and go leave nothing behind.
#include <malloc.h>

#include "tests/native/transport/rounds.hpp"
#include "tests/native/transport/zmq_library.hpp"

namespace vccl {
namespace {

struct Footprint {
  int files = 0, maps = 0, threads = 0;
  bool operator==(const Footprint&) const = default;
};

int lines(const std::string& path, const std::string& part = "") {
  std::ifstream file(path);
  int count = 0;
  for (std::string line; std::getline(file, line);) count += line.find(part) != std::string::npos;
  return count;
}

template <class Path>
int entries(const Path& folder) {
  int count = 0;
  for (auto& entry : std::filesystem::directory_iterator(folder))
    count += entry.exists() || entry.is_symlink();
  return count;
}

/// Sockets without a name in the file system are files too, and go with the last descriptor. Maps: those of
/// shared files only, since the allocator makes and drops others as it likes.
Footprint footprint() {
  return {entries("/proc/self/fd"), lines("/proc/self/maps", "memfd:"), entries("/proc/self/task")};
}

/// A thread that was joined may stay in /proc for some time after that.
void check_not_more_than(const Footprint& before) {
  Footprint now = footprint();
  for (const Deadline soon = Deadline::in(Milliseconds(60'000));
       now.threads > before.threads && !soon.passed(); now = footprint())
    usleep(1000);
  CHECK_EQ(now.files, before.files);
  CHECK_EQ(now.maps, before.maps);
  CHECK(now.threads <= before.threads);
}

long resident_kib() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmRSS:")) return std::atol(line.c_str() + 6);
  }
  return 0;
}

/// One process a rank; every cycle is a group made, used and destroyed. Resident memory is compared between a
/// third of the way and the end, with room for the allocator's own habits; a lost control memory is over 1
/// MiB mapped.
void cycle_processes(int cycles, const std::string& hosts) {
  find_zmq_for_tests();
  FileStore store;
  const int size = static_cast<int>(hosts.size());
  run_processes(size, [&](int rank) {
    TestRegion region;
    Footprint before;
    [[maybe_unused]] long resident = 0;
    for (int cycle = 0; cycle <= cycles; ++cycle) {
      // A fresh group needs fresh keys.
      struct Prefixed final : Store {
        Store& inner;
        std::string prefix;
        Prefixed(Store& store, std::string text) : inner(store), prefix(std::move(text)) {}
        void set(const std::string& key, const std::string& value) override {
          inner.set(prefix + key, value);
        }
        std::string get(const std::string& key, const Deadline& d) override {
          return inner.get(prefix + key, d);
        }
        std::string compare_set(const std::string& key, const std::string& expected,
                                const std::string& value) override {
          return inner.compare_set(prefix + key, expected, value);
        }
        void remove(const std::string& key) override { inner.remove(prefix + key); }
      } prefixed(store, std::to_string(cycle) + "/");
      CommunicatorConfig config = test_config(rank, size);
      config.host_id = std::string(1, hosts[static_cast<std::size_t>(rank)]);
      config.regions = {region.region()};
      {
        auto c = Communicator::create(prefixed, config);
        pass_window(*c, region.span(0, 5000));
        pass_committed(*c, 2);
      }
      if (cycle == 0) before = footprint();
      check_not_more_than(before);
      if (cycle == cycles / 3) resident = resident_kib();
    }
#if defined(__SANITIZE_ADDRESS__)
    const long grown = 0;  // the sanitizer keeps what was freed, to catch its use
#else
    const long grown = resident_kib() - resident;
#endif
    if (grown > 8192) throw check::Failure("resident memory grew by " + std::to_string(grown) + " KiB");
  });
  CHECK_EQ(store.keys(), static_cast<std::size_t>(cycles) + 1);  // the identities
}

TEST(processes_on_one_host) {
  cycle_processes(300, "aa");
}
TEST(processes_on_two_hosts) {
  cycle_processes(60, "ab");
}

void cycle_threads(int cycles, const std::string& hosts) {
  find_zmq_for_tests();
  const int size = static_cast<int>(hosts.size());
  Footprint before;
  for (int cycle = 0; cycle <= cycles; ++cycle) {
    MemoryStore store;
    run_threads(size, [&](int rank) {
      TestRegion region;
      CommunicatorConfig config = test_config(rank, size);
      config.host_id = std::string(1, hosts[static_cast<std::size_t>(rank)]);
      config.regions = {region.region()};
      auto c = Communicator::create(store, config);
      pass_window(*c, region.span(0, 5000));
      // Regions go with the thread, and peers of this process use them in place: nobody leaves before all are
      // done.
      pass_committed(*c, 2);
    });
    CHECK_EQ(store.keys(), 1u);  // the identity
    if (cycle == 0) before = footprint();
    check_not_more_than(before);
  }
}

TEST(threads_on_one_host) {
  cycle_threads(100, "aaa");
}
TEST(threads_on_two_hosts) {
  cycle_threads(40, "aab");
}

TEST(groups_that_fail_to_form_leave_nothing) {
  Footprint before;
  for (int cycle = 0; cycle < 20; ++cycle) {
    MemoryStore store;
    run_threads(2, [&](int rank) {
      CommunicatorConfig config = test_config(rank, 3);
      config.timeout = Milliseconds(20);
      CHECK(error_of([&] { Communicator::create(store, config); }).code() == ErrorCode::timeout);
    });
    if (cycle == 0) before = footprint();
    check_not_more_than(before);
  }
}

TEST(killed_ranks_leave_nothing) {
  const Footprint before = footprint();
  for (int round = 0; round < 10; ++round) {
    FileStore store;
    Processes processes(2, [&](int rank) {
      TestRegion region;
      CommunicatorConfig config = test_config(rank, 2);
      config.regions = {region.region()};
      auto c = Communicator::create(store, config);
      store.set("ready/" + std::to_string(rank), "");
      while (true) pass_window(*c, region.span(0, 5000));
    });
    for (int rank = 0; rank < 2; ++rank)
      store.get("ready/" + std::to_string(rank), Deadline::in(Milliseconds(300'000)));
    kill(processes.pid(0), SIGKILL);
    kill(processes.pid(1), SIGKILL);
    processes.wait();
  }
  check_not_more_than(before);
}

}  // namespace
}  // namespace vccl

TEST_MAIN
