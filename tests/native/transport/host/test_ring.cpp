// Blocks round the ring inside one host: threads and processes as ranks, every way to send a block.
#include <random>

#include "tests/native/transport/rounds.hpp"

namespace vccl {
namespace {

void check_ring(Store& store, int rank, int size) {
  TestRegion region(1 << 20);
  CommunicatorConfig config = test_config(rank, size);
  config.regions = {region.region()};
  auto c = Communicator::create(store, config);
  CHECK_EQ(c->rank(), rank);
  CHECK_EQ(c->size(), size);
  CHECK_EQ(c->host_count(), 1);
  CHECK_EQ(c->ring_rank(c->ring_position()), rank);
  CHECK_EQ(c->host_of(size - 1), 0);
  check_rounds(*c, region);
}

void with_threads(int size) {
  MemoryStore store;
  run_threads(size, [&](int rank) { check_ring(store, rank, size); });
  CHECK_EQ(store.keys(), 1u);  // the identity
}

void with_processes(int size) {
  FileStore store;
  run_processes(size, [&](int rank) { check_ring(store, rank, size); });
  CHECK_EQ(store.keys(), 1u);  // the identity
}

TEST(threads_1) {
  with_threads(1);
}
TEST(threads_2) {
  with_threads(2);
}
TEST(threads_3) {
  with_threads(3);
}
TEST(threads_4) {
  with_threads(4);
}
TEST(threads_5) {
  with_threads(5);
}
TEST(processes_1) {
  with_processes(1);
}
TEST(processes_2) {
  with_processes(2);
}
TEST(processes_3) {
  with_processes(3);
}
TEST(processes_5) {
  with_processes(5);
}

// Ranks mix windows in regions with windows outside of them: the reader goes by what the sender announced.
TEST(mixed_windows) {
  MemoryStore store;
  run_threads(3, [&](int rank) {
    TestRegion region;
    std::vector<std::byte> plain(kWindow);
    CommunicatorConfig config = test_config(rank, 3);
    if (rank != 1) config.regions = {region.region()};
    auto c = Communicator::create(store, config);
    for (int round = 0; round < 6; ++round) {
      pass_window(*c, rank == 1 || round == rank ? std::span(plain) : region.span(4096, kWindow));
    }
  });
}

// Ranks that come late by random times: every turn between spinning, yielding, sleeping and being woken.
TEST(late_ranks) {
  MemoryStore store;
  run_threads(3, [&](int rank) {
    std::minstd_rand random(static_cast<unsigned>(rank) + 1);
    TestRegion region;
    CommunicatorConfig config = test_config(rank, 3);
    config.regions = {region.region()};
    auto c = Communicator::create(store, config);
    for (int round = 0; round < 100; ++round) {
      usleep(static_cast<useconds_t>(random() % 2 ? random() % 4000 : 0));
      pass_window(*c, region.span(0, 10'000));
      usleep(static_cast<useconds_t>(random() % 8 ? 0 : random() % 4000));
      pass_committed(*c, 3);
    }
  });
}

TEST(one_operation_at_a_time) {
  MemoryStore store;
  auto c = Communicator::create(store, test_config(0, 1));
  {
    Operation first(*c, {}, {}, Deadline::in(Milliseconds(300'000)));
    const Error error = error_of([&] { Operation(*c, {}, {}, Deadline::in(Milliseconds(300'000))); });
    CHECK(error.code() == ErrorCode::invalid);
    check_contains(error.what(), "group test already runs an operation");
    first.finish();
  }
  pass_window(*c, {});
}

TEST(several_groups_share_mappings) {
  FileStore stores[3];
  run_processes(3, [&](int rank) {
    TestRegion region;
    CommunicatorConfig config = test_config(rank, 3);
    config.regions = {region.region()};
    std::vector<std::unique_ptr<Communicator>> groups;
    for (FileStore& store : stores) groups.push_back(Communicator::create(store, config));
    for (auto& group : groups) pass_window(*group, region.span(0, kWindow));
    std::ifstream maps("/proc/self/maps");
    int mapped = 0;
    for (std::string line; std::getline(maps, line);) mapped += line.find("test-region") != std::string::npos;
    CHECK_EQ(mapped, 3);
  });
}

TEST(bad_arguments) {
  MemoryStore store;
  CHECK(error_of([&] { Communicator::create(store, test_config(2, 2)); }).code() == ErrorCode::invalid);
  CHECK(error_of([&] { Communicator::create(store, test_config(0, 0)); }).code() == ErrorCode::invalid);
  CommunicatorConfig config = test_config(0, 1);
  TestRegion region;
  config.regions.assign(9, region.region());
  CHECK(error_of([&] { Communicator::create(store, config); }).code() == ErrorCode::invalid);

  auto c = Communicator::create(store, test_config(0, 1));
  std::vector<std::byte> window(100);
  Operation operation(*c, {}, window, Deadline::in(Milliseconds(300'000)));
  CHECK(error_of([&] { c->right().post(50, 51); }).code() == ErrorCode::invalid);
  CHECK(error_of([&] { c->right().post(SIZE_MAX, 2); }).code() == ErrorCode::invalid);
  CHECK(error_of([&] { c->left().take(101, 0); }).code() == ErrorCode::invalid);
  CHECK(error_of([&] { c->right().commit(kBlock + 1); }).code() == ErrorCode::invalid);
  operation.finish();
}

}  // namespace
}  // namespace vccl

TEST_MAIN
