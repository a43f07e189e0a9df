// Which cores ranks may run on, and whether they have to take turns there: agreed on by all of them.
#include <mutex>
#include <random>
#include <set>

#include "tests/native/transport/cores.hpp"
#include "tests/native/transport/harness.hpp"
#include "transport/host.hpp"

namespace vccl {
namespace {

UsableCores cores(const std::vector<int>& numbers, int limit = CPU_SETSIZE) {
  return UsableCores::of(mask_of(numbers), limit);
}

bool crowded(const std::vector<UsableCores>& processes) {
  return are_crowded(processes);
}

/// Whether ranks find that they are crowded, where each is bound to its entry of `bound` when it joins. All
/// of them find the same.
bool find_crowded(const std::vector<std::vector<int>>& bound, bool forked) {
  const int size = static_cast<int>(bound.size());
  MemoryStore memory;
  FileStore files;
  Store& store = forked ? static_cast<Store&>(files) : memory;
  const auto body = [&](int rank) {
    bind_to(bound[static_cast<std::size_t>(rank)]);
    const auto communicator = Communicator::create(store, test_config(rank, size));
    files.set("crowded/" + std::to_string(rank), communicator->peers()->crowded() ? "yes" : "no");
  };
  if (forked)
    run_processes(size, body);
  else
    run_threads(size, body);
  std::set<std::string> found;
  for (int rank = 0; rank < size; ++rank)
    found.insert(files.get("crowded/" + std::to_string(rank), Deadline::in(Milliseconds(1'000))));
  CHECK_EQ(found.size(), 1u);
  return *found.begin() == "yes";
}

TEST(cores_are_counted_once) {
  UsableCores all = cores({0, 3});
  CHECK_EQ(all.count(), 2);
  all.add(cores({3, 700}));
  CHECK_EQ(all.count(), 3);
  all.add(all);
  CHECK_EQ(all.count(), 3);
  all.add(cores({CPU_SETSIZE - 1}));
  CHECK_EQ(all.count(), 4);
  CHECK_EQ(cores({}).count(), 1);
}

TEST(the_least_quota_limits_them) {
  UsableCores all = cores({0, 1, 2, 3}, 3);
  CHECK_EQ(all.count(), 3);
  all.add(cores({4}, 2));
  CHECK_EQ(all.count(), 2);
  all.add(cores({5}, 0));  // less than a core's time is a core for some of the time
  CHECK_EQ(all.count(), 1);
}

TEST(cores_within_others) {
  CHECK(cores({1, 700}).within(cores({0, 1, 700})));
  CHECK(cores({1}).within(cores({1})));
  CHECK(!cores({1, 2}).within(cores({1})));
  CHECK(!cores({700}).within(cores({1})));
}

TEST(a_crowd_has_more_processes_than_cores) {
  CHECK(!crowded({cores({0})}));
  CHECK(!crowded({cores({0, 1}), cores({0, 1})}));
  CHECK(crowded({cores({0, 1}), cores({0, 1}), cores({0, 1})}));
  CHECK(!crowded({cores({0}), cores({1}), cores({2})}));
  CHECK(crowded({cores({5}), cores({5})}));
  CHECK(crowded({cores({0, 1, 2, 3}, 1), cores({0, 1, 2, 3}, 1)}));
  // A core for each in all, but not for those that are bound.
  CHECK(crowded({cores({0}), cores({0}), cores({0, 1, 2, 3})}));
  CHECK(crowded({cores({0, 1, 2, 3, 4}), cores({0, 1}), cores({1}), cores({0, 1})}));
  CHECK(!crowded({cores({0}), cores({0, 1}), cores({0, 1, 2})}));
}

TEST(a_process_knows_its_own_cores) {
  run_threads(1, [](int) {
    const auto all = cores_of_this_thread();
    const int count = UsableCores::of_this_process().count();
    CHECK(count >= 1 && count <= static_cast<int>(all.size()));
    bind_to({all.back()});
    CHECK_EQ(UsableCores::of_this_process().count(), 1);
    CHECK(UsableCores::of_this_process().within(cores({all.back()})));
    CHECK(cores({all.back()}).within(UsableCores::of_this_process()));
  });
}

TEST(ranks_with_a_core_each_are_no_crowd_and_ranks_on_one_core_are) {
  const auto all = cores_of_this_thread();
  const int count = std::min(UsableCores::of_this_process().count(), 4);
  for (const bool forked : {false, true}) {
    std::vector<std::vector<int>> own;
    for (int rank = 0; rank < count; ++rank) own.push_back({all[static_cast<std::size_t>(rank)]});
    CHECK(!find_crowded(own, forked));
    CHECK(!find_crowded(std::vector(static_cast<std::size_t>(count), all), forked));
    for (const int size : {2, 3})
      CHECK(find_crowded(std::vector(static_cast<std::size_t>(size), std::vector{all[0]}), forked));
    const auto more = static_cast<std::size_t>(UsableCores::of_this_process().count() + 1);
    if (more <= 17) CHECK(find_crowded(std::vector(more, all), forked));
  }
}

// Whatever cores the ranks are bound to, find_crowded() finds one answer, and the one that follows from them.
TEST(ranks_on_any_cores_agree) {
  const auto all = cores_of_this_thread();
  const auto limit = UsableCores::of_this_process().count();
  std::mt19937 random(3);
  for (int round = 0; round < 12; ++round) {
    std::vector<std::vector<int>> bound(1 + random() % 4);
    std::vector<UsableCores> masks;
    for (auto& numbers : bound) {
      while (numbers.empty())
        for (const int core : all)
          if (random() % 2) numbers.push_back(core);
      masks.push_back(cores(numbers, limit));
    }
    CHECK_EQ(find_crowded(bound, round % 2), are_crowded(masks));
  }
}

}  // namespace
}  // namespace vccl

TEST_MAIN
