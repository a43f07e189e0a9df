// Connections between hosts that end while a group is made, with FIN or RST: they are made again, from the
// first hello on, or the group fails at once with an error that names the link.
#include <algorithm>
#include <atomic>
#include <vector>

#include "tests/native/transport/meeting/path_store.hpp"
#include "tests/native/transport/rounds.hpp"
#include "tests/native/transport/zmq_library.hpp"

namespace vccl {
namespace {

using Passing = OnPath::Passing;
using Then = OnPath::Then;

constexpr Then kEnds[] = {Then::close, Then::reset};
// Of a connection that libzmq encrypts, this many pieces come before the first hello: both greetings, and
// four commands of the handshake.
constexpr int kHandshake = 6;

void wait_until(const std::function<bool()>& reached) {
  const Deadline deadline = Deadline::in(Milliseconds(60'000));
  while (!reached()) {
    CHECK(!deadline.passed());
    usleep(1000);
  }
}

/// Nothing here depends on how fast the machine is.
void be_patient(const char* security = "encrypt") {
  find_zmq_for_tests();
  setenv("VCCL_LINK_SECURITY", security, 1);
  setenv("VCCL_LINK_TIMEOUT", "60", 1);
}

/// Makes the group and uses all of its links.
void make_and_use(Store& store, const std::string& hosts, int rank) {
  const auto c = make_over(store, hosts, rank);
  std::vector<std::byte> window(kWindow);
  pass_window(*c, window);
  pass_committed(*c, 5);
}

void make_and_use(Store& store, const std::string& hosts) {
  run_threads(static_cast<int>(hosts.size()), [&](int rank) { make_and_use(store, hosts, rank); });
}

/// Makes the group once for each piece of the first connection of `link` up to `last`, where the connection
/// ends: with an RST at every other piece, from the first one on if `reset`, and with a FIN at the others.
void cut_each_piece(const std::string& hosts, const std::string& link, int last, bool reset) {
  for (int number = 0; number <= last; ++number, reset = !reset) {
    std::atomic<int> cuts{0};
    PathStore store([&](const std::string& of, const Passing& passing, std::string&) {
      if (of != link || passing.connection != 0 || passing.piece != number) return Then::pass;
      ++cuts;
      return reset ? Then::reset : Then::close;
    });
    try {
      make_and_use(store, hosts);
    } catch (const std::exception& error) {
      throw check::Failure(link + ", piece " + std::to_string(number) + ": " + error.what());
    }
    if (number == 0) CHECK_EQ(cuts.load(), 1);
  }
}

// Before the hello, between hello and answer, behind the answer, and later.
TEST(a_connection_that_is_cut_once_is_made_again) {
  be_patient();
  for (const bool reset : {false, true}) {
    cut_each_piece("ab", reset ? "link/0 endpoint" : "link/1 endpoint", kHandshake + 6, reset);
    cut_each_piece("ab", reset ? "link/0 stream" : "link/1 stream", 4, reset);
  }
}

TEST(a_connection_is_made_again_under_every_protection) {
  for (const char* security : {"authenticate", "none"}) {
    be_patient(security);
    cut_each_piece("ab", "link/1 endpoint", kHandshake + 2, true);
    cut_each_piece("ab", "link/1 stream", 1, false);
  }
}

TEST(connections_of_leaps_and_of_the_ring_across_hosts_are_made_again) {
  be_patient();
  cut_each_piece("abc", "leap1/2 endpoint", kHandshake + 2, true);
  cut_each_piece("aabb", "across/3 endpoint", kHandshake + 2, false);
  cut_each_piece("aabb", "across/2 stream", 1, true);
}

// All first connections are cut, each at another stage.
TEST(all_connections_are_cut) {
  be_patient();
  constexpr int kStages = kHandshake + 3;
  for (int number = 0; number < kStages; ++number) {
    PathStore store([&](const std::string& of, const Passing& passing, std::string&) {
      const int rank = of[of.find('/') + 1] - '0';
      const bool cut = passing.connection == 0 && passing.piece == (number + 3 * rank) % kStages;
      return !cut ? Then::pass : number % 2 ? Then::close : Then::reset;
    });
    make_and_use(store, "abc");
  }
}

/// Ends all connections of a link, waits until they were made again, and then lets the last rank come.
void cut_while_one_is_missing(const std::string& link, const std::string& when_set, Then end) {
  be_patient();
  std::atomic<bool> reached{false};
  PathStore* paths = nullptr;
  PathStore store([](const std::string&, const Passing&, std::string&) { return Then::pass; },
                  [&](const std::string& key) {
                    if (key == when_set) reached = true;
                    if (key != "link/3") return;
                    wait_until([&] { return reached.load(); });
                    OnPath& path = paths->path_of(link);
                    wait_until([&] { return path.accepted() > 0; });
                    const int before = path.accepted();
                    path.end_all(end);
                    wait_until([&] { return path.accepted() > before; });
                  });
  paths = &store;
  make_and_use(store, "abcd");
}

// Rank 1 has all its neighbours on the ring, and its leap. It looks at the store, and rank 3 is not there
// yet.
TEST(a_rank_that_is_done_with_its_links_makes_them_again) {
  for (const Then end : kEnds) {
    cut_while_one_is_missing("link/1 endpoint", "leap1/1", end);
    cut_while_one_is_missing("link/1 stream", "leap1/1", end);
    cut_while_one_is_missing("link/2 endpoint", "leap1/1", end);
  }
}

// The connection has ended for one side only, and nothing comes any more on the other one.
TEST(a_connection_that_falls_silent_is_made_again) {
  be_patient();
  setenv("VCCL_LINK_TIMEOUT", "4", 1);
  const auto silence = [](const char* link, int number) {
    PathStore store([&](const std::string& of, const Passing& passing, std::string&) {
      return of == link && passing.connection == 0 && passing.piece >= number ? Then::hold : Then::pass;
    });
    make_and_use(store, "ab");
  };
  for (const int number : {0, 2, kHandshake}) silence("link/1 endpoint", number);
  silence("link/1 stream", 0);
}

/// What all ranks raise, or nothing where a rank has made the group.
std::vector<std::string> errors_of(Store& store, const std::string& hosts) {
  std::vector<std::string> errors(hosts.size());
  run_threads(static_cast<int>(hosts.size()), [&](int rank) {
    try {
      make_over(store, hosts, rank);
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  return errors;
}

/// Every connection of `link` ends at the same stage. All ranks have to name it if they raise an error, and
/// have to raise one if it `must_fail`.
void cut_again_and_again(const std::string& hosts, const std::string& link, int number, Then end,
                         const std::vector<std::string>& names, bool must_fail) {
  PathStore store([&](const std::string& of, const Passing& passing, std::string&) {
    return of == link && passing.piece == number ? end : Then::pass;
  });
  const std::vector<std::string> errors = errors_of(store, hosts);
  for (const std::string& error : errors) {
    if (!must_fail && error.empty()) continue;
    for (const std::string& name : names) check_contains(error, name);
  }
}

TEST(a_connection_that_is_cut_again_and_again_is_named) {
  be_patient();
  const std::vector<std::string> names{
      "rank 0 could not connect to rank 1 (tcp://127.0.0.1",
      ", host b) (the connection was cut 20 times; a firewall may be in the way"};
  for (const Then end : kEnds) {
    for (const int number : {0, kHandshake - 1})
      cut_again_and_again("ab", "link/1 endpoint", number, end, names, true);
  }
  cut_again_and_again("ab", "link/1 stream", 0, Then::reset, names, true);
  // These may still bring enough across.
  for (int number = kHandshake; number < kHandshake + 3; ++number)
    cut_again_and_again("ab", "link/1 endpoint", number, Then::close, {"rank 0", "rank 1"}, false);
}

TEST(such_a_connection_of_a_leap_is_named) {
  be_patient();
  cut_again_and_again("abc", "leap1/2 endpoint", 0, Then::close,
                      {"rank 0 could not connect to rank 2 (tcp://127.0.0.1", "was cut 20 times"}, true);
}

// Rank 0 waits for rank 2 to connect, which does not come before the group has failed.
TEST(a_rank_that_waits_for_another_one_tells_of_the_link) {
  be_patient();
  std::atomic<bool> failed{false};
  PathStore store([](const std::string& of, const Passing&,
                     std::string&) { return of == "link/1 endpoint" ? Then::close : Then::pass; },
                  [&](const std::string& key) {
                    if (key == "failure") failed = true;
                    if (key == "link/2") wait_until([&] { return failed.load(); });
                  });
  for (const std::string& error : errors_of(store, "abc"))
    check_contains(error, "rank 0 could not connect to rank 1 (tcp://127.0.0.1");
}

}  // namespace
}  // namespace vccl

TEST_MAIN
