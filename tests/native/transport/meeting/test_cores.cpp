// Which cores ranks may run on, and whether they have to take turns there: agreed on by all of them.
#include <mutex>
#include <random>
#include <set>

#include "base/cores.hpp"
#include "tests/native/transport/cores.hpp"
#include "tests/native/transport/harness.hpp"

namespace vccl {
namespace {

base::UsableCores cores(const std::vector<int>& numbers, int limit = CPU_SETSIZE) {
  return base::UsableCores::of(mask_of(numbers), limit);
}

bool oversubscribed(const std::vector<base::UsableCores>& processes) {
  return base::are_oversubscribed(processes);
}

/// Whether ranks find that they are oversubscribed, where each is bound to its entry of `bound` when it
/// joins. All of them find the same.
bool find_oversubscribed(const std::vector<std::vector<int>>& bound, bool forked) {
  const int size = static_cast<int>(bound.size());
  MemoryStore memory;
  FileStore files;
  Store& store = forked ? static_cast<Store&>(files) : memory;
  const auto body = [&](int rank) {
    bind_to(bound[static_cast<std::size_t>(rank)]);
    const auto communicator = Communicator::create(store, test_config(rank, size));
    files.set("oversubscribed/" + std::to_string(rank),
              communicator->all_peers()->oversubscribed() ? "yes" : "no");
  };
  if (forked)
    run_processes(size, body);
  else
    run_threads(size, body);
  std::set<std::string> found;
  for (int rank = 0; rank < size; ++rank)
    found.insert(files.get("oversubscribed/" + std::to_string(rank), Deadline::in(Milliseconds(300'000))));
  CHECK_EQ(found.size(), 1u);
  return *found.begin() == "yes";
}

TEST(cores_are_counted_once) {
  base::UsableCores all = cores({0, 3});
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
  base::UsableCores all = cores({0, 1, 2, 3}, 3);
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
  CHECK(!oversubscribed({cores({0})}));
  CHECK(!oversubscribed({cores({0, 1}), cores({0, 1})}));
  CHECK(oversubscribed({cores({0, 1}), cores({0, 1}), cores({0, 1})}));
  CHECK(!oversubscribed({cores({0}), cores({1}), cores({2})}));
  CHECK(oversubscribed({cores({5}), cores({5})}));
  CHECK(oversubscribed({cores({0, 1, 2, 3}, 1), cores({0, 1, 2, 3}, 1)}));
  // A core for each in all, but not for those that are bound.
  CHECK(oversubscribed({cores({0}), cores({0}), cores({0, 1, 2, 3})}));
  CHECK(oversubscribed({cores({0, 1, 2, 3, 4}), cores({0, 1}), cores({1}), cores({0, 1})}));
  CHECK(!oversubscribed({cores({0}), cores({0, 1}), cores({0, 1, 2})}));
}

TEST(a_process_knows_its_own_cores) {
  run_threads(1, [](int) {
    const auto all = cores_of_this_thread();
    const int count = base::UsableCores::of_this_process().count();
    CHECK(count >= 1 && count <= static_cast<int>(all.size()));
    bind_to({all.back()});
    CHECK_EQ(base::UsableCores::of_this_process().count(), 1);
    CHECK(base::UsableCores::of_this_process().within(cores({all.back()})));
    CHECK(cores({all.back()}).within(base::UsableCores::of_this_process()));
  });
}

TEST(ranks_with_a_core_each_are_no_crowd_and_ranks_on_one_core_are) {
  const auto all = cores_of_this_thread();
  const int count = std::min(base::UsableCores::of_this_process().count(), 4);
  for (const bool forked : {false, true}) {
    std::vector<std::vector<int>> own;
    for (int rank = 0; rank < count; ++rank) own.push_back({all[static_cast<std::size_t>(rank)]});
    CHECK(!find_oversubscribed(own, forked));
    CHECK(!find_oversubscribed(std::vector(static_cast<std::size_t>(count), all), forked));
    for (const int size : {2, 3})
      CHECK(find_oversubscribed(std::vector(static_cast<std::size_t>(size), std::vector{all[0]}), forked));
    const auto more = static_cast<std::size_t>(base::UsableCores::of_this_process().count() + 1);
    if (more <= 17) CHECK(find_oversubscribed(std::vector(more, all), forked));
  }
}

// Whatever cores the ranks are bound to, find_oversubscribed() finds one answer, and the one that follows
// from them.
TEST(ranks_on_any_cores_agree) {
  const auto all = cores_of_this_thread();
  const auto limit = base::UsableCores::of_this_process().count();
  std::mt19937 random(3);
  for (int round = 0; round < 12; ++round) {
    std::vector<std::vector<int>> bound(1 + random() % 4);
    std::vector<base::UsableCores> masks;
    for (auto& numbers : bound) {
      while (numbers.empty())
        for (const int core : all)
          if (random() % 2) numbers.push_back(core);
      masks.push_back(cores(numbers, limit));
    }
    CHECK_EQ(find_oversubscribed(bound, round % 2), base::are_oversubscribed(masks));
  }
}

}  // namespace
}  // namespace vccl

TEST_MAIN
