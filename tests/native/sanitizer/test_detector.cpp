// The detector, also against an oracle: the transitive closure of everything that a random program does.
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "sanitizer/detector.hpp"
#include "tests/native/check.hpp"

using namespace sanitizer;

namespace {

const void* address(std::uintptr_t value) {
  return reinterpret_cast<const void*>(value);
}

constexpr std::uintptr_t kBlock = 0x10000;

Access access_to(std::uintptr_t offset, std::size_t bytes, bool writes) {
  return {.block = address(kBlock), .memory = Footprint(address(kBlock + offset), bytes), .writes = writes};
}

std::size_t races(Detector& detector, Lane lane, Site site, const Access& access) {
  return detector.access(lane, site, {&access, 1}).size();
}

/// Follows a program by brute force: each action remembers every action before it.
class Oracle {
 public:
  explicit Oracle(std::size_t lanes) : before_(lanes) {}

  void wait(Lane lane, Lane other) { add(before_[lane], before_[other]); }
  std::vector<bool> point(Lane lane) const { return before_[lane]; }
  void wait(Lane lane, const std::vector<bool>& point) { add(before_[lane], point); }

  /// Returns whether an earlier access that is not before this one conflicts with it.
  bool access(Lane lane, const Access& access) {
    bool race = false;
    for (std::size_t i = 0; i < accesses_.size(); ++i) {
      const bool ordered = i < before_[lane].size() && before_[lane][i];
      if (!ordered && (accesses_[i].writes || access.writes) && accesses_[i].memory.overlaps(access.memory))
        race = true;
    }
    accesses_.push_back(access);
    before_[lane].resize(accesses_.size());
    before_[lane].back() = true;
    return race;
  }

 private:
  static void add(std::vector<bool>& to, const std::vector<bool>& from) {
    if (to.size() < from.size()) to.resize(from.size());
    for (std::size_t i = 0; i < from.size(); ++i)
      if (from[i]) to[i] = true;
  }

  std::vector<std::vector<bool>> before_;
  std::vector<Access> accesses_;
};

}  // namespace

TEST(random_programs_race_where_the_closure_says_so) {
  std::mt19937 random(11);
  const auto up_to = [&](int n) { return static_cast<unsigned>(random()) % static_cast<unsigned>(n); };
  int racing = 0, right = 0;
  for (int program = 0; program < 3000; ++program) {
    const Lane lanes = 2 + up_to(5);
    Detector detector;
    Oracle oracle(lanes);
    std::vector<std::pair<Point, std::vector<bool>>> events;
    for (int step = 0; step < 60; ++step) {
      const Lane lane = up_to(static_cast<int>(lanes)), other = up_to(static_cast<int>(lanes));
      switch (up_to(6)) {
        case 0:
          detector.wait(lane, other);
          oracle.wait(lane, other);
          break;
        case 1:
          events.emplace_back(detector.point(lane), oracle.point(lane));
          break;
        case 2:
          if (events.empty()) break;
          {
            const auto& [point, known] = events[up_to(static_cast<int>(events.size()))];
            detector.wait(lane, point);
            oracle.wait(lane, known);
          }
          break;
        default: {
          const Access access = access_to(up_to(40), 1 + up_to(20), up_to(2) == 0);
          const bool expected = oracle.access(lane, access);
          CHECK_EQ(races(detector, lane, 1, access) != 0, expected);
          ++(expected ? racing : right);
        }
      }
    }
  }
  CHECK(racing > 10'000 && right > 10'000);
}

TEST(a_race_names_both_actions) {
  Detector detector;
  const Lane host = 0, stream = 1, side = 2;
  detector.wait(stream, host);
  detector.allocated(address(kBlock), 64, stream, 5);
  CHECK_EQ(races(detector, stream, 10, access_to(0, 64, true)), 0U);
  detector.wait(side, host);
  const Access read = access_to(8, 8, false);
  const auto found = detector.access(side, 20, {&read, 1});
  CHECK_EQ(found.size(), 1U);
  CHECK_EQ(found[0].first.site, 10U);
  CHECK(found[0].first.writes && found[0].first.lane == stream);
  CHECK_EQ(found[0].second.site, 20U);
  CHECK(!found[0].second.writes && found[0].second.lane == side);
  CHECK_EQ(found[0].allocated, 5U);
  CHECK_EQ(found[0].freed, 0U);
}

TEST(a_wait_says_whether_it_orders_anything) {
  Detector detector;
  const Lane host = 0, stream = 1;
  CHECK(!detector.wait(host, stream));
  CHECK_EQ(races(detector, stream, 1, access_to(0, 8, true)), 0U);
  CHECK(detector.wait(host, stream));
  CHECK(!detector.wait(host, stream));
  CHECK(!detector.wait(host, Point()));
}

TEST(memory_that_another_stream_still_uses_races_with_its_next_life) {
  for (const bool kept : {false, true}) {
    Detector detector;
    const Lane stream = 0, side = 1;
    detector.allocated(address(kBlock), 64, stream, 1);
    CHECK_EQ(races(detector, stream, 2, access_to(0, 64, true)), 0U);
    detector.wait(side, stream);
    CHECK_EQ(races(detector, side, 3, access_to(0, 64, false)), 0U);
    if (kept) detector.keep_for(address(kBlock), side);
    CHECK_EQ(detector.freed(address(kBlock)), !kept);
    detector.freed_at(address(kBlock), 4);
    detector.allocated(address(kBlock + 32), 16, stream, 5);
    const Access write{
        .block = address(kBlock + 32), .memory = Footprint(address(kBlock + 32), 16), .writes = true};
    const auto found = detector.access(stream, 6, {&write, 1});
    CHECK_EQ(found.size(), kept ? 0U : 1U);
    if (kept) continue;
    CHECK_EQ(found[0].first.site, 3U);
    CHECK_EQ(found[0].freed, 4U);
  }
}

TEST(an_allocator_that_gives_memory_to_another_stream_has_waited) {
  Detector detector;
  const Lane stream = 0, side = 1, third = 2;
  detector.allocated(address(kBlock), 64, stream, 1);
  CHECK_EQ(races(detector, side, 2, access_to(0, 64, true)), 0U);
  CHECK(detector.freed(address(kBlock)));
  detector.allocated(address(kBlock), 64, third, 3);
  CHECK_EQ(races(detector, third, 4, access_to(0, 64, true)), 0U);
}

TEST(memory_may_have_been_used_by_what_its_stream_has_waited_for) {
  const Lane stream = 0, reader = 1, user = 2;
  const auto races_of_user = [&](auto wait) {
    Detector detector;
    detector.allocated(address(kBlock), 64, stream, 1);
    CHECK_EQ(races(detector, stream, 2, access_to(0, 64, true)), 0U);
    for (const Lane lane : {reader, user}) detector.wait(lane, stream);
    CHECK_EQ(races(detector, reader, 3, access_to(0, 64, false)), 0U);
    detector.wait(stream, reader);
    wait(detector);
    CHECK(!detector.freed(address(kBlock)));
    detector.allocated(address(kBlock), 64, stream, 4);
    return races(detector, user, 5, access_to(0, 64, true));
  };
  CHECK_EQ(races_of_user([](Detector&) {}), 1U);
  CHECK_EQ(races_of_user([&](Detector& detector) { detector.wait(user, stream); }), 0U);
  // It knows all that the stream knows, although not from the stream.
  CHECK_EQ(races_of_user([&](Detector& detector) { detector.wait(user, reader); }), 0U);
}

TEST(work_of_the_past_sees_only_what_was_before_it) {
  Detector detector;
  const Lane stream = 0, side = 1;
  const Point launch = detector.point(stream);
  CHECK_EQ(races(detector, side, 1, access_to(0, 8, true)), 0U);
  detector.wait(stream, side);
  const Access read = access_to(0, 8, false);
  CHECK_EQ(detector.access(stream, launch, 2, {&read, 1}).size(), 1U);
}

TEST(a_point_of_another_detector_orders_nothing) {
  Detector before, detector;
  CHECK_EQ(races(before, 1, 1, access_to(0, 8, true)), 0U);
  const Point point = before.point(1);
  CHECK(before.has_made(point) && !detector.has_made(point) && !detector.has_made(nullptr));
  CHECK_EQ(races(detector, 1, 1, access_to(0, 8, true)), 0U);
  CHECK(!detector.wait(0, point));
  CHECK_EQ(races(detector, 0, 2, access_to(0, 8, false)), 1U);
}

TEST(what_nobody_has_written_is_known) {
  Detector detector;
  const Lane stream = 0;
  const Access read = access_to(32, 8, false), elsewhere = access_to(0, 8, false);
  CHECK_EQ(detector.unwritten(stream, 1, {&read, 1}).size(), 0U);  // not an allocation
  detector.allocated(address(kBlock), 64, stream, 1);
  CHECK_EQ(detector.unwritten(stream, 2, {&read, 1}).size(), 1U);
  CHECK_EQ(races(detector, stream, 3, access_to(32, 4, true)), 0U);
  CHECK_EQ(detector.unwritten(stream, 4, {&read, 1}).size(), 0U);
  CHECK_EQ(detector.unwritten(stream, 5, {&elsewhere, 1}).size(), 1U);
}

TEST(a_pointer_belongs_to_one_life_of_its_memory) {
  Detector detector;
  const auto at = [](std::uintptr_t offset) { return address(kBlock + offset); };
  CHECK(!detector.owner_of(at(0)) && !detector.gone_at(at(0)));
  detector.allocated(at(0), 64, 0, 1);
  const auto owner = detector.owner_of(at(63));
  CHECK(owner && owner->block == at(0) && owner->allocated == 1);
  CHECK(!detector.owner_of(at(64)) && !detector.end_of(*owner));

  CHECK(detector.freed(at(0)));  // somebody has asked for the owner
  detector.freed_at(at(0), 2);
  CHECK(detector.end_of(*owner) && detector.end_of(*owner)->freed == 2);
  CHECK(detector.gone_at(at(8)) && detector.gone_at(at(8))->allocated == 1 && !detector.gone_at(at(64)));

  detector.allocated(at(32), 64, 0, 3);  // overlaps the end of the memory that is gone
  CHECK(!detector.gone_at(at(0)) && !detector.gone_at(at(40)));
  CHECK(detector.owner_of(at(40))->allocated == 3 && !detector.owner_of(at(8)));
  CHECK(detector.end_of(*owner) && !detector.end_of(*detector.owner_of(at(40))));
  detector.allocated(at(128), 64, 0, 4);
  CHECK(!detector.freed(at(128)));  // nobody has asked
  detector.released();
  CHECK(!detector.gone_at(at(128)) && detector.end_of(*owner));
}

TEST(many_rows_keep_within_the_bound) {
  Detector detector;
  const Lane stream = 0;
  for (std::uintptr_t row = 0; row < 3 * Block::kMostAccesses; ++row)
    CHECK_EQ(races(detector, stream, 1, access_to(row * 16, 8, true)), 0U);
  CHECK_EQ(detector.remembered().size(), Block::kMostAccesses);
}

TEST(threads_may_use_it_at_once) {
  Detector detector;
  constexpr int threads = 4;
  std::atomic<std::size_t> found{0};
  std::vector<std::thread> running;
  for (Lane lane = 0; lane < threads; ++lane) {
    running.emplace_back([&, lane] {
      for (std::uintptr_t i = 0; i < 2000; ++i) {
        const auto* block = address(kBlock + lane * 0x1000);
        detector.allocated(block, 64, lane, 1);
        const Access access{.block = block, .memory = Footprint(block, 64), .writes = true};
        found += detector.access(lane, 1, {&access, 1}).size();
        detector.wait(lane, detector.point((lane + 1) % threads));
        detector.wait(lane, (lane + 2) % threads);
        if (detector.freed(block)) found += 1;
      }
    });
  }
  for (auto& thread : running) thread.join();
  CHECK_EQ(found.load(), 0U);
}

TEST_MAIN
