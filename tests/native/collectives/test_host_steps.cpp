// The steps in which payloads get from hosts to other hosts: played for every number of hosts up to 17, with
// every root.
#include "csrc_pg/collectives/buffers/host_steps.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tests/native/check.hpp"

using namespace vccl;

namespace {

constexpr int kMostHosts = 17;

/// What one host has when all hosts have done their steps, and how many steps were behind that.
struct Played {
  std::set<int> hosts;
  int depth = 0;
};

/// One message: the hosts that it is about, in their order, and how many messages came before it.
struct Sent {
  std::vector<int> hosts;
  int depth;
};

/// Plays one host's steps as far as the messages that others have sent allow. Returns whether it got further.
class Player {
 public:
  Player(int size, int position, HostSteps steps)
      : size_(size), position_(position), steps_(std::move(steps)) {
    if (std::ranges::count(steps_.hosts, position)) has.hosts.insert(position);
  }

  bool go_on(std::map<std::pair<int, int>, Sent>& under_way) {
    const std::size_t before = next_;
    for (; next_ < steps_.steps.size(); ++next_) {
      const HostSteps::Step& step = steps_.steps[next_];
      const std::vector<int> hosts(steps_.hosts.begin() + step.begin, steps_.hosts.begin() + step.end);
      if (step.sends) {
        for (const int host : hosts) CHECK(has.hosts.contains(host));
        const int to = (position_ + (1 << step.leap)) % size_;
        CHECK(under_way.try_emplace({to, step.leap}, Sent{hosts, has.depth + 1}).second);
        continue;
      }
      const auto found = under_way.find({position_, step.leap});
      if (found == under_way.end()) break;
      // Both ends have the hosts in one order, since they lie so in one message.
      CHECK(found->second.hosts == hosts);
      has.hosts.insert(hosts.begin(), hosts.end());
      has.depth = std::max(has.depth, found->second.depth);
      found->second.hosts.clear();  // it stays there, since a host sends once on a leap
    }
    return next_ > before;
  }
  bool done() const { return next_ == steps_.steps.size(); }

  Played has;

 private:
  const int size_, position_;
  const HostSteps steps_;
  std::size_t next_ = 0;
};

std::vector<Played> play(int size, const std::function<HostSteps(int position)>& steps_of) {
  std::vector<Player> players;
  for (int position = 0; position < size; ++position)
    players.emplace_back(size, position, steps_of(position));
  std::map<std::pair<int, int>, Sent> under_way;
  for (bool further = true; further;) {
    further = false;
    for (Player& player : players) further = player.go_on(under_way) || further;
  }
  std::vector<Played> result;
  for (const Player& player : players) {
    CHECK(player.done());
    result.push_back(player.has);
  }
  for (const auto& [where, sent] : under_way) CHECK(sent.hosts.empty());  // nobody sends in vain
  return result;
}

int least_steps(int size) {
  return std::bit_width(static_cast<unsigned>(size - 1));
}

}  // namespace

TEST(everything_gets_everywhere_in_the_least_steps) {
  for (int size = 1; size <= kMostHosts; ++size)
    for (const Played& host :
         play(size, [&](int position) { return steps_from_all_to_all(size, position); })) {
      CHECK_EQ(int(host.hosts.size()), size);
      CHECK_EQ(host.depth, least_steps(size));
    }
}

TEST(what_one_host_has_gets_everywhere_in_the_least_steps) {
  for (int size = 1; size <= kMostHosts; ++size)
    for (int root = 0; root < size; ++root)
      for (const Played& host :
           play(size, [&](int position) { return steps_from_one(size, position, root); })) {
        CHECK(host.hosts == std::set<int>{root});
        CHECK(host.depth <= least_steps(size));
      }
}

TEST(everything_gets_to_one_host_in_the_least_steps) {
  for (int size = 1; size <= kMostHosts; ++size)
    for (int root = 0; root < size; ++root) {
      const auto hosts = play(size, [&](int position) { return steps_to_one(size, position, root); });
      CHECK_EQ(int(hosts[std::size_t(root)].hosts.size()), size);
      CHECK(hosts[std::size_t(root)].depth <= least_steps(size));
    }
}

TEST_MAIN
