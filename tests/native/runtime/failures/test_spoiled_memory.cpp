// Memory that a failed task should have written, and who may read it again when.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "csrc_device/runtime/allocator/caching_allocator.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/memory/arena.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/spoiled_memory.hpp"
#include "csrc_device/runtime/stream.hpp"
#include "tests/native/check.hpp"
#include "tests/native/runtime/gate.hpp"
#include "tests/native/runtime/suppressions.hpp"

using vdev::FailureOwner;
using vdev::FailurePtr;
using vdev::spoiled_memory;
using vdev::SpoiledMemory;
using vdev::StridedMemory;

namespace {

std::exception_ptr error(const char* text) {
  return std::make_exception_ptr(std::runtime_error(text));
}

std::string text_at(const void* begin, std::size_t bytes) {
  const auto failure = spoiled_memory().find(begin, bytes);
  if (!failure) return "";
  try {
    std::rethrow_exception(failure->error());
  } catch (const std::exception& e) {
    return e.what();
  }
}

std::array<std::byte, 4096> memory;
const std::byte* const at = memory.data();

}  // namespace

TEST(a_range_is_spoiled_until_it_is_written_anew) {
  const auto group = std::make_shared<FailureOwner>();
  CHECK(!SpoiledMemory::any());
  spoiled_memory().spoil(at + 100, 100, group->fail(error("boom")));
  CHECK(SpoiledMemory::any());
  CHECK_EQ(text_at(at, 4096), std::string("boom"));
  CHECK_EQ(text_at(at, 101), std::string("boom"));
  CHECK_EQ(text_at(at + 199, 1), std::string("boom"));
  CHECK_EQ(text_at(at, 100), std::string(""));
  CHECK_EQ(text_at(at + 200, 100), std::string(""));
  CHECK_EQ(text_at(at + 150, 0), std::string(""));
  CHECK_EQ(text_at(at + 120, 4), std::string("boom"));  // again and again
  spoiled_memory().renew(at + 120, 30);
  CHECK_EQ(text_at(at + 120, 30), std::string(""));
  CHECK_EQ(text_at(at + 100, 20), std::string("boom"));
  CHECK_EQ(text_at(at + 149, 2), std::string("boom"));
  spoiled_memory().renew(at + 50, 70);
  spoiled_memory().renew(at + 150, 500);
  CHECK(!SpoiledMemory::any());
}

TEST(dealing_with_the_owner_makes_its_ranges_readable_and_no_others) {
  const auto one = std::make_shared<FailureOwner>(), two = std::make_shared<FailureOwner>();
  const auto first = one->fail(error("one")), second = two->fail(error("two"));
  spoiled_memory().spoil(at, 100, first);
  spoiled_memory().spoil(at + 50, 100, second);
  CHECK_EQ(text_at(at + 50, 50), std::string("one"));
  one->settle();
  CHECK_EQ(text_at(at, 50), std::string(""));
  CHECK_EQ(text_at(at + 50, 50), std::string("two"));
  // What a task of a failure that is dealt with tells late is no longer of interest.
  spoiled_memory().spoil(at, 100, first);
  CHECK_EQ(text_at(at, 50), std::string(""));
  // Another failure of the same owner counts again.
  spoiled_memory().spoil(at, 10, one->fail(error("one again")));
  CHECK_EQ(text_at(at, 100), std::string("one again"));
  one->close();
  two->close();
  CHECK(!SpoiledMemory::any());
}

TEST(what_fails_after_the_close_stays_until_it_is_written_anew) {
  const auto group = std::make_shared<FailureOwner>();
  group->close();
  spoiled_memory().spoil(at, 100, group->fail(error("late")));
  group->close();
  CHECK_EQ(text_at(at, 1), std::string("late"));
  spoiled_memory().renew(at, 100);
  CHECK(!SpoiledMemory::any());
}

TEST(copied_memory_is_spoiled_as_its_source_is) {
  const auto group = std::make_shared<FailureOwner>();
  const auto failure = group->fail(error("boom"));
  spoiled_memory().spoil(at + 10, 10, failure);
  spoiled_memory().spoil(at + 1000, 30, failure);
  spoiled_memory().copied(at + 1000, at, 15);
  CHECK_EQ(text_at(at + 1000, 10), std::string(""));
  CHECK_EQ(text_at(at + 1010, 1), std::string("boom"));
  CHECK_EQ(text_at(at + 1014, 1), std::string("boom"));
  CHECK_EQ(text_at(at + 1015, 15), std::string("boom"));
  spoiled_memory().renew(at + 1015, 15);
  CHECK_EQ(text_at(at + 1015, 100), std::string(""));
  group->settle();
  CHECK(!SpoiledMemory::any());
}

TEST(a_strided_array_is_its_elements_alone) {
  const auto group = std::make_shared<FailureOwner>();
  // Column 1 of a matrix of 4 by 5 elements of 4 bytes.
  const std::array<std::int64_t, 2> sizes{4, 1}, strides{5, 1};
  const StridedMemory column{at + 4, 4, sizes, strides};
  CHECK_EQ(vdev::span_of(column), std::size_t{3 * 20 + 4});
  spoiled_memory().spoil(column, group->fail(error("boom")));
  for (std::size_t row = 0; row < 4; ++row) {
    CHECK_EQ(text_at(at + row * 20, 4), std::string(""));
    CHECK_EQ(text_at(at + row * 20 + 4, 4), std::string("boom"));
    CHECK_EQ(text_at(at + row * 20 + 8, 12), std::string(""));
  }
  const StridedMemory next{at + 8, 4, sizes, strides};
  CHECK(!spoiled_memory().find(next));
  CHECK(spoiled_memory().find(column));
  // The whole matrix, transposed, is one run.
  const std::array<std::int64_t, 2> all{5, 4}, transposed{1, 5};
  int runs = 0;
  CHECK(vdev::for_each_run({at, 4, all, transposed}, 1, [&](const std::byte* begin, std::size_t bytes) {
    CHECK(begin == at);
    CHECK_EQ(bytes, std::size_t{80});
    ++runs;
  }));
  CHECK_EQ(runs, 1);
  CHECK(!vdev::for_each_run(column, 3, [&](const std::byte*, std::size_t) { ++runs; }));
  CHECK_EQ(runs, 1);
  // Expanded, and empty.
  const std::array<std::int64_t, 2> expanded{7, 2}, zero{0, 1}, none{0, 2};
  CHECK_EQ(vdev::span_of({at, 4, expanded, zero}), std::size_t{8});
  CHECK_EQ(vdev::span_of({at, 4, none, zero}), std::size_t{0});
  spoiled_memory().renew(column);
  CHECK(!SpoiledMemory::any());
}

TEST(random_operations_agree_with_a_flag_a_byte) {
  std::mt19937 random(7);
  const auto one = std::make_shared<FailureOwner>(), two = std::make_shared<FailureOwner>();
  std::array<FailurePtr, 2> failures{one->fail(error("one")), two->fail(error("two"))};
  std::array<unsigned, 256> flags{};
  for (int step = 0; step < 20000; ++step) {
    const auto begin = random() % 256, bytes = random() % (257 - begin), to = random() % (257 - bytes);
    const auto which = random() % 2;
    switch (random() % 8) {
      case 0:
      case 1:
      case 2:
        spoiled_memory().spoil(at + begin, bytes, failures[which]);
        for (auto i = begin; i < begin + bytes; ++i) flags[i] |= 1u << which;
        break;
      case 3:
      case 4:
        spoiled_memory().renew(at + begin, bytes);
        for (auto i = begin; i < begin + bytes; ++i) flags[i] = 0;
        break;
      case 5:
        if (to + bytes > begin && begin + bytes > to) break;
        spoiled_memory().copied(at + to, at + begin, bytes);
        for (std::size_t i = 0; i < bytes; ++i) flags[to + i] = flags[begin + i];
        break;
      case 6:
        if (random() % 16 != 0) break;
        (which ? two : one)->settle();
        failures[which] = (which ? two : one)->fail(error(which ? "two" : "one"));
        for (auto& flag : flags) flag &= ~(1u << which);
        break;
      default:
        break;
    }
    bool any = false;
    for (auto i = begin; i < begin + bytes; ++i) any |= flags[i] != 0;
    CHECK_EQ(spoiled_memory().find(at + begin, bytes) != nullptr, any);
    CHECK_EQ(SpoiledMemory::any(), std::ranges::any_of(flags, [](unsigned flag) { return flag != 0; }));
  }
  one->close();
  two->close();
  CHECK(!SpoiledMemory::any());
}

TEST(a_freed_block_is_fresh_for_whoever_gets_it_next) {
  vdev::Arena arena("test", std::size_t{64} << 20);
  vdev::CachingAllocator allocator(arena, 0);
  const auto stream = std::make_shared<vdev::Stream>(-1, 0, 0, "test");
  const auto group = std::make_shared<FailureOwner>();
  auto* block = allocator.allocate(1000, stream);
  spoiled_memory().spoil(block, 1000, group->fail(error("boom")));
  CHECK_EQ(text_at(block, 1), std::string("boom"));
  allocator.free(block);
  CHECK(!SpoiledMemory::any());
}

TEST(a_task_spoils_its_outputs_before_anybody_sees_it_finished) {
  // Many streams fail at once while readers ask; what a reader has synchronised with, it finds spoiled.
  constexpr int kThreads = 4, kRounds = 300;
  const auto group = std::make_shared<FailureOwner>();
  std::atomic<int> missed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto stream = std::make_shared<vdev::Stream>(-1, t, 0, "test");
      const auto* mine = at + t * 512;
      for (int round = 0; round < kRounds; ++round) {
        stream->enqueue(vdev::task_without_memory([&, mine] {
                          const auto failure = group->fail(error("boom"));
                          spoiled_memory().spoil(mine, 512, failure);
                          vdev::report_failure(failure);
                        }),
                        round % 2 ? vdev::Start::kAtOnce : vdev::Start::kByWaiter);
        stream->synchronize_before_reading();
        if (!SpoiledMemory::any() || !spoiled_memory().find(mine, 1)) ++missed;
        spoiled_memory().renew(mine, 512);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(missed.load(), 0);
  group->close();
  CHECK(!SpoiledMemory::any());
}

TEST(a_forked_child_begins_with_nothing_spoiled) {
  const auto group = std::make_shared<FailureOwner>();
  spoiled_memory().spoil(at, 100, group->fail(error("boom")));
  const pid_t child = ::fork();
  if (child == 0) {
    group->close();  // the parent's: left alone
    const bool none = !spoiled_memory().find(at, 100) && !SpoiledMemory::any();
    const auto own = std::make_shared<FailureOwner>();
    spoiled_memory().spoil(at, 10, own->fail(error("own")));
    const bool has_own = spoiled_memory().find(at, 10) != nullptr;
    ::_exit(none && has_own ? 0 : 1);
  }
  int status = 0;
  CHECK_EQ(::waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK_EQ(text_at(at, 1), std::string("boom"));
  group->close();
}

namespace {

/// Fails, or copies a byte of memory that is not spoiled.
struct CopyByte final : vdev::TaskBody {
  CopyByte(const std::byte* f, std::byte* t) : from(f), to(t) {}
  void run() override {
    if (from == nullptr) throw std::runtime_error("boom");
    if (const auto failure = spoiled_memory().find(from, 1)) return vdev::give_up_part(*this, failure);
    *to = *from;
    spoiled_memory().renew(to, 1);
  }
  void give_up(const FailurePtr& failure) override { spoiled_memory().spoil(to, 1, failure); }
  const std::byte* const from;
  std::byte* const to;
};

vdev::Task copy_byte(const std::byte* from, std::byte* to) {
  return vdev::Task(std::make_shared<CopyByte>(from, to));
}

}  // namespace

// The host runs ahead of the stream, so it frees and reuses the memory before the task has failed.
TEST(memory_that_was_freed_is_spoiled_for_the_tasks_before_the_free_alone) {
  auto& card = vdev::card(0);
  const auto stream = card.default_stream();
  auto& allocator = card.allocator();
  for (const bool reused : {true, false}) {
    for (const bool freed_later : {true, false}) {
      Gate gate, failed, freed;
      stream->enqueue(vdev::task_without_memory([&] { gate.pass(); }));
      std::byte* passing = allocator.allocate(512, stream);
      std::byte* result = allocator.allocate(512, stream);
      stream->enqueue(copy_byte(nullptr, passing));
      stream->enqueue(vdev::task_without_memory([&] {
        failed.open();
        if (freed_later) freed.pass();
      }));
      stream->enqueue(copy_byte(passing, result));
      if (freed_later) {
        gate.open();
        failed.pass();
      }
      allocator.free(passing);
      std::byte* next = reused ? allocator.allocate(512, stream) : nullptr;
      if (reused) CHECK(next == passing);
      bool spoiled = reused;
      if (reused)
        stream->enqueue(
            vdev::task_without_memory([&] { spoiled = spoiled_memory().find(next, 512) != nullptr; }));
      freed.open();
      gate.open();
      CHECK_THROWS(stream->synchronize(), std::runtime_error);
      CHECK(!spoiled);
      CHECK_EQ(text_at(result, 1), std::string("boom"));
      CHECK_EQ(text_at(passing, 512), std::string(""));
      CHECK_THROWS(stream->synchronize(), std::runtime_error);
      allocator.free(result);
      stream->synchronize();
      CHECK_EQ(text_at(result, 1), std::string(""));
      CHECK(!SpoiledMemory::any());
      if (reused) allocator.free(next);
    }
  }
}

TEST_MAIN
