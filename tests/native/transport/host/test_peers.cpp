// Every rank's memory at once: payloads, phases, and what happens to shown memory when an operation fails.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/native/check.hpp"
#include "tests/native/transport/harness.hpp"
#include "tests/native/transport/zmq_library.hpp"

using namespace vccl;

namespace {

const Deadline kLater = Deadline::in(Milliseconds(3'600'000));

std::unique_ptr<Communicator> join(Store& store, int rank, int size, const TestRegion* region) {
  CommunicatorConfig config = test_config(rank, size);
  if (region) config.regions = {region->region()};
  return Communicator::create(store, config);
}

Announcement showing(std::span<std::byte> input, std::span<std::byte> output, std::uint64_t count = 0) {
  Announcement announcement{.signature = {.count = count}};
  announcement.shows = true;
  announcement.input = input;
  announcement.output = output;
  return announcement;
}

std::vector<std::byte> bytes_of(int rank, std::uint64_t operation, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = pattern(rank, operation, i);
  return bytes;
}

}  // namespace

// Lengths on both sides of what fits the operation slot; twice as many operations as there are areas, again
// and again, with nothing else between them.
TEST(payloads_arrive_with_the_announcement) {
  for (const int size : {1, 2, 3}) {
    MemoryStore store;
    run_threads(size, [&](int rank) {
      const auto communicator = join(store, rank, size, nullptr);
      std::uint64_t number = 0;
      for (int round = 0; round < 20; ++round)
        for (const std::size_t length : {1, 8, 24, 25, 87, 88, 89, 4096, 65536}) {
          const auto ours = bytes_of(rank, ++number, length);
          Announcement announcement{.signature = {.count = length}, .payload_bytes = length};
          const std::size_t cut = length / 3;
          announcement.payload[0] = std::span(ours).first(cut);
          announcement.payload[1] = std::span(ours).subspan(cut);
          Operation operation(*communicator, announcement, kLater);
          for (int other = 0; other < size; ++other)
            CHECK(std::memcmp(communicator->all_peers()->payload(other),
                              bytes_of(other, number, length).data(), length) == 0);
          operation.finish();
        }
    });
  }
}

TEST(a_payload_beside_shown_memory) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    TestRegion region;
    const auto communicator = join(store, rank, 2, &region);
    for (int round = 0; round < 10; ++round) {
      const auto ours = bytes_of(rank, std::uint64_t(round), 16);
      Announcement announcement = showing(region.span(0, 8), region.span(64, 8));
      announcement.payload_bytes = 16;
      announcement.payload[1] = ours;
      announcement.factor = std::uint64_t(rank) + 7;
      Operation operation(*communicator, announcement, kLater);
      Peers& peers = *communicator->all_peers();
      CHECK(peers.all_mapped());
      CHECK_EQ(peers.factor(1 - rank), std::uint64_t(1 - rank) + 7);
      CHECK(std::memcmp(peers.payload(1 - rank), bytes_of(1 - rank, std::uint64_t(round), 16).data(), 16) ==
            0);
      operation.finish();
    }
  });
}

TEST(a_payload_that_is_too_long_is_refused) {
  MemoryStore store;
  const auto communicator = join(store, 0, 1, nullptr);
  const std::vector<std::byte> bytes(Peers::kPayloadBytes + 1);
  Announcement announcement{.payload_bytes = bytes.size()};
  announcement.payload[0] = bytes;
  CHECK_THROWS(Operation(*communicator, announcement, kLater), Error);
}

TEST(a_part_longer_than_the_payload_is_refused) {
  MemoryStore store;
  const auto communicator = join(store, 0, 1, nullptr);
  const std::vector<std::byte> bytes(9);
  Announcement announcement{.payload_bytes = 8};
  announcement.payload[1] = bytes;
  CHECK_THROWS(Operation(*communicator, announcement, kLater), Error);
}

// Each rank writes to all outputs what it read from all inputs; phases order it.
TEST(peers_read_inputs_and_write_outputs) {
  for (const int size : {1, 2, 4}) {
    FileStore store;
    run_processes(size, [&](int rank) {
      TestRegion region;
      const auto communicator = join(store, rank, size, &region);
      const std::size_t length = 64 * std::size_t(size);
      for (std::uint64_t round = 0; round < 200; ++round) {
        const auto input = region.span(round % 3 * 4096, 64), output = region.span(16384, length);
        const auto ours = bytes_of(rank, round, 64);
        std::memcpy(input.data(), ours.data(), 64);
        Operation operation(*communicator, showing(input, output), kLater);
        Peers& peers = *communicator->all_peers();
        CHECK(peers.all_mapped());
        for (int other = 0; other < size; ++other) {
          CHECK_EQ(peers.input(other).size(), 64u);
          CHECK_EQ(peers.output(other).size(), length);
          std::memcpy(peers.output(other).data() + 64 * rank, peers.input(rank).data(), 64);
        }
        peers.arrive(1);
        peers.await_all(1);
        for (int other = 0; other < size; ++other) {
          CHECK(std::memcmp(output.data() + 64 * other, bytes_of(other, round, 64).data(), 64) == 0);
          peers.await(other, 1);
        }
        operation.finish();
      }
    });
  }
}

TEST(all_mapped_is_the_same_on_every_rank) {
  MemoryStore store;
  run_threads(3, [&](int rank) {
    TestRegion region;
    std::vector<std::byte> plain(64);
    const auto communicator = join(store, rank, 3, &region);
    for (int odd_one = 0; odd_one < 4; ++odd_one) {
      const auto input = rank == odd_one ? std::span(plain) : region.span(0, 64);
      // Nothing lies nowhere, and need not be mapped.
      Operation operation(*communicator,
                          showing(input, rank == 2 ? std::span<std::byte>() : region.span(64, 64)), kLater);
      CHECK_EQ(communicator->all_peers()->all_mapped(), odd_one == 3);
      operation.finish();
    }
  });
}

// A group over two hosts: the ranks of each are each other's peers, by index, while the ring goes over all.
TEST(across_hosts_the_peers_are_the_ranks_of_the_host) {
  find_zmq_for_tests();
  FileStore store;
  run_processes(5, [&](int rank) {
    TestRegion region;
    CommunicatorConfig config = test_config(rank, 5);
    config.host_id = rank % 2 ? "odd" : "even";
    config.regions = {region.region()};
    const auto communicator = Communicator::create(store, config);
    const std::vector<int> here = rank % 2 ? std::vector{1, 3} : std::vector{0, 2, 4};
    CHECK(communicator->all_peers() == nullptr);
    Peers& peers = communicator->host_peers();
    CHECK(std::ranges::equal(peers.ranks(), here));
    const int own = peers.own(), count = static_cast<int>(here.size());
    CHECK_EQ(here.at(std::size_t(own)), rank);
    CHECK(peers.mappable());
    const int left = communicator->ring_rank((communicator->ring_position() + 4) % 5);
    const auto input = region.span(0, 64), output = region.span(16384, 64 * std::size_t(count));
    const auto items = region.span(32768, std::size_t(count));
    for (std::uint64_t round = 0; round < 50; ++round) {
      const auto ours = bytes_of(rank, round, 64);
      std::memcpy(input.data(), ours.data(), 64);
      Announcement announcement = showing(input, region.span(16384, 32768));
      announcement.window = input;
      announcement.factor = std::uint64_t(rank) + 7;
      announcement.payload_bytes = 64;
      announcement.payload[0] = ours;
      Operation operation(*communicator, announcement, kLater);
      communicator->right().post(0, 64);
      CHECK(peers.all_mapped());
      for (int peer = 0; peer < count; ++peer) {
        const int its_rank = here.at(std::size_t(peer));
        const auto its = bytes_of(its_rank, round, 64);
        CHECK_EQ(peers.factor(peer), std::uint64_t(its_rank) + 7);
        CHECK(std::memcmp(peers.payload(peer), its.data(), 64) == 0);
        CHECK(std::memcmp(peers.input(peer).data(), its.data(), 64) == 0);
        std::memcpy(peers.output(peer).data() + 64 * own, ours.data(), 64);
      }
      peers.arrive(1);
      peers.await(count - 1 - own, 1);
      peers.await_all(1);
      for (int peer = 0; peer < count; ++peer) {
        const auto its = bytes_of(here.at(std::size_t(peer)), round, 64);
        CHECK(std::memcmp(output.data() + 64 * peer, its.data(), 64) == 0);
      }
      // Whoever does an item of work does it for every peer of the host.
      for (int item = peers.claim_work_item(); item >= 0; item = peers.claim_work_item()) {
        for (int peer = 0; peer < count; ++peer)
          peers.output(peer)[std::size_t(16384 + item)] = static_cast<std::byte>(round + 1);
        peers.deliver_work_item();
      }
      peers.await_work_items();
      CHECK(
          std::ranges::all_of(items, [&](std::byte at) { return at == static_cast<std::byte>(round + 1); }));
      const std::byte* block = communicator->left().take(0, 64);
      CHECK(std::memcmp(block, bytes_of(left, round, 64).data(), 64) == 0);
      communicator->left().release();
      operation.finish();
    }
  });
}

// The same as below, with the failure on another host.
TEST(nobody_writes_to_shown_memory_after_the_error_of_another_host) {
  find_zmq_for_tests();
  MemoryStore store;
  std::atomic<bool> inside{false}, stopped{false};
  run_threads(3, [&](int rank) {
    TestRegion region;
    CommunicatorConfig config = test_config(rank, 3);
    config.host_id = rank == 2 ? "b" : "a";
    config.regions = {region.region()};
    const auto communicator = Communicator::create(store, config);
    const Error error = error_of([&] {
      Operation operation(*communicator, showing({}, region.span(0, 4096)), kLater);
      Peers& peers = communicator->host_peers();
      if (rank == 2) {
        while (!inside.load()) std::this_thread::yield();
        communicator->abort("for the test");
      } else if (rank == 1) {
        CHECK(peers.all_mapped());
        inside = true;
        while (!communicator->failed()) peers.output(0)[7] = std::byte{1};
        std::this_thread::sleep_for(Milliseconds(100));
        peers.output(0)[8] = std::byte{2};
        stopped = true;
      } else {
        peers.await_all(1);
      }
      communicator->check();
    });
    CHECK_EQ(to_string(error.code()), std::string("aborted"));
    check_contains(error.what(), "rank 2 aborted group");
    if (rank == 0) CHECK(stopped.load());
  });
}

// The error comes only when the peer that still writes has stopped: the memory may be used for something else
// then.
TEST(nobody_writes_to_shown_memory_after_the_error) {
  MemoryStore store;
  std::atomic<bool> inside{false}, stopped{false};
  run_threads(2, [&](int rank) {
    TestRegion region;
    const auto communicator = join(store, rank, 2, &region);
    const auto output = region.span(0, 4096);
    if (rank == 0) {
      const Error error = error_of([&] {
        Operation operation(*communicator, showing({}, output), kLater);
        while (!inside.load()) std::this_thread::yield();
        communicator->abort("for the test");
        communicator->all_peers()->await_all(1);
      });
      CHECK_EQ(to_string(error.code()), std::string("aborted"));
      CHECK(stopped.load());
    } else {
      CHECK_THROWS(({
                     Operation operation(*communicator, showing({}, output), kLater);
                     const auto theirs = communicator->all_peers()->all_mapped()
                                             ? communicator->all_peers()->output(0)
                                             : std::span<std::byte>();
                     CHECK_EQ(theirs.size(), 4096u);
                     inside = true;
                     while (!communicator->failed()) theirs[7] = std::byte{1};
                     std::this_thread::sleep_for(Milliseconds(100));
                     theirs[8] = std::byte{2};
                     stopped = true;
                     communicator->all_peers()->arrive(1);
                     communicator->all_peers()->await_all(1);
                   }),
                   Error);
    }
  });
}

// A rank that comes after another has given up waiting for it does not get in.
TEST(a_late_rank_finds_the_failure_when_it_begins) {
  MemoryStore store;
  std::atomic<bool> gave_up{false};
  run_threads(2, [&](int rank) {
    TestRegion region;
    const auto communicator = join(store, rank, 2, &region);
    if (rank == 1) {
      while (!gave_up.load()) std::this_thread::sleep_for(Milliseconds(1));
    }
    const Deadline deadline = rank == 0 ? Deadline::in(Milliseconds(20)) : kLater;
    const Error error =
        error_of([&] { Operation(*communicator, showing({}, region.span(0, 64)), deadline).finish(); });
    CHECK_EQ(to_string(error.code()), std::string("timeout"));
    gave_up = true;
    // Rank 0 stays until rank 1 has seen it.
    if (rank == 0) CHECK(communicator->failed());
  });
}

TEST(a_wait_for_a_phase_names_the_rank_and_the_operation) {
  MemoryStore store;
  std::atomic<bool> over{false};
  run_threads(3, [&](int rank) {
    const auto communicator = join(store, rank, 3, nullptr);
    const Deadline deadline = rank == 0 ? Deadline::in(Milliseconds(3'000)) : kLater;
    const Error error = error_of([&] {
      Operation operation(*communicator, {.signature = {.count = 5}}, deadline);
      if (rank == 2) {
        while (!over.load()) std::this_thread::yield();
      }
      communicator->all_peers()->arrive(1);
      communicator->all_peers()->await_all(1);
      operation.finish();
      communicator->check();
    });
    over = true;
    CHECK_EQ(to_string(error.code()), std::string("timeout"));
    check_contains(error.what(), "for rank 2 in the midst of test_0(5 elements)");
  });
}

TEST_MAIN
