// Which places of a process a plan strikes, and what its faults do to processes and buffers.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "faults/faults.hpp"
#include "faults/plan.hpp"
#include "faults/strikes.hpp"
#include "tests/native/check.hpp"

using namespace vccl::faults;

namespace {

/// Returns the numbers of the places, from 1, at which a plan of one rule strikes.
std::vector<int> struck_of(const Rule& rule, int places, const Identity& self = {.rank = 0},
                           std::uint64_t seed = 0, const Site& site = {.op = "all_reduce"}) {
  Plan plan({rule}, seed);
  std::vector<int> numbers;
  for (int number = 1; number <= places; ++number)
    if (!plan.decide(self, 0, site).empty()) numbers.push_back(number);
  return numbers;
}

Strikes strikes_of(Kind kind, Moment at, double amount = 0) {
  return Strikes(Place{"all_reduce", "default_pg", 3, 1, 0}, {Fault{0, kind, at, amount, "", 12345}});
}

/// Returns how a child ends that strikes itself.
int status_after(Kind kind, double amount = 0) {
  const pid_t child = ::fork();
  if (child == 0) {
    strikes_of(kind, Moment::before, amount).strike(Moment::before);
    ::_exit(99);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

}  // namespace

TEST(a_rule_without_a_number_strikes_everywhere) {
  CHECK(struck_of({}, 3) == (std::vector{1, 2, 3}));
}

TEST(the_n_th_and_every_n_th_place) {
  CHECK(struck_of({.n = 2}, 6) == (std::vector{2}));
  CHECK(struck_of({.every = 2}, 6) == (std::vector{2, 4, 6}));
  CHECK(struck_of({.n = 2, .every = 3}, 9) == (std::vector{2, 5, 8}));
}

TEST(a_probability_is_drawn_from_seed_rank_and_number_alone) {
  const Rule rule{.probability = 0.25};
  const auto first = struck_of(rule, 4000, {.rank = 3}, 7);
  CHECK(first == struck_of(rule, 4000, {.rank = 3}, 7));
  CHECK(first != struck_of(rule, 4000, {.rank = 2}, 7));
  CHECK(first != struck_of(rule, 4000, {.rank = 3}, 8));
  CHECK(first.size() > 850 && first.size() < 1150);
  CHECK(struck_of({.probability = 1}, 5).size() == 5 && struck_of({.probability = 0}, 5).empty());
}

TEST(what_other_rules_match_does_not_move_the_draws) {
  const Rule rule{.op = "all_reduce", .probability = 0.5};
  Plan alone({rule}, 1), mixed({rule}, 1);
  for (int i = 0; i < 200; ++i) {
    mixed.decide({.rank = 0}, 0, {.op = "broadcast"});
    CHECK_EQ(alone.decide({.rank = 0}, 0, {.op = "all_reduce"}).size(),
             mixed.decide({.rank = 0}, 0, {.op = "all_reduce"}).size());
  }
}

TEST(ranks_hosts_restarts_and_steps_are_compared) {
  const Rule rule{.ranks = {{1, 1}, {3, 5}}, .steps = {{7, 7}}, .restarts = {{0, 0}}, .host = "node1"};
  const auto strikes = [&](std::int64_t rank, const char* host, std::int64_t restart, std::int64_t step) {
    return !Plan({rule}, 0).decide({rank, host, restart}, step, {.op = "barrier"}).empty();
  };
  CHECK(strikes(1, "node1", 0, 7) && strikes(4, "node1", 0, 7));
  CHECK(!strikes(2, "node1", 0, 7) && !strikes(6, "node1", 0, 7) && !strikes(-1, "node1", 0, 7));
  CHECK(!strikes(1, "node2", 0, 7) && !strikes(1, "node1", 1, 7) && !strikes(1, "node1", 0, 8));
}

TEST(a_group_goes_by_its_name_or_its_description) {
  const Rule rule{.group = "mesh_dp"};
  CHECK(struck_of(rule, 1, {.rank = 0}, 0, {.op = "send", .group = "mesh_dp"}).size() == 1);
  CHECK(struck_of(rule, 1, {.rank = 0}, 0, {.op = "send", .group = "3", .description = "mesh_dp"}).size() ==
        1);
  CHECK(struck_of(rule, 1, {.rank = 0}, 0, {.op = "send", .group = "3"}).empty());
}

TEST(an_operation_stands_for_all_of_its_forms) {
  CHECK(is_named("all_gather_into_tensor", "all_gather") &&
        is_named("reduce_scatter_tensor", "reduce_scatter"));
  CHECK(is_named("all_gather_into_tensor_coalesced", "all_gather") &&
        is_named("all_to_all_single", "all_to_all"));
  CHECK(!is_named("all_gather", "all_gather_into_tensor") && !is_named("reduce_scatter", "reduce"));
}

TEST(a_rule_is_for_operations_or_for_a_phase) {
  const Site phase{.phase = "init"};
  CHECK(struck_of({}, 1, {.rank = 0}, 0, phase).empty());
  CHECK(struck_of({.phase = "init"}, 1, {.rank = 0}, 0, phase).size() == 1);
  CHECK(struck_of({.phase = "init"}, 1).empty());
}

TEST(products_of_matrices_are_for_one_kind_alone) {
  const Site product{.op = "matmul"};
  CHECK(struck_of({.kind = Kind::sdc}, 1, {.rank = 0}, 0, product).size() == 1);
  CHECK(struck_of({.kind = Kind::stall}, 1, {.rank = 0}, 0, product).empty());
  CHECK(struck_of({.kind = Kind::sdc}, 1).empty());
}

TEST(places_without_a_buffer_do_not_count_for_damage) {
  Plan plan({{.n = 2, .kind = Kind::nan}}, 0);
  const Identity self{.rank = 0};
  CHECK(plan.decide(self, 0, {.op = "all_reduce", .reads = true, .floating = true}).empty());
  CHECK(plan.decide(self, 0, {.op = "barrier"}).empty());
  CHECK(plan.decide(self, 0, {.op = "all_reduce", .reads = true}).empty());  // of integers
  CHECK_EQ(plan.decide(self, 0, {.op = "all_reduce", .reads = true, .floating = true}).size(),
           std::size_t{1});
}

TEST(processes_end_as_the_kinds_say) {
  CHECK(WTERMSIG(status_after(Kind::kill)) == SIGKILL);
  CHECK(WTERMSIG(status_after(Kind::segv)) == SIGSEGV);
  CHECK(WTERMSIG(status_after(Kind::abort)) == SIGABRT);
  const int status = status_after(Kind::exit, 7);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

TEST(a_signal_that_the_program_handles_ends_the_process_all_the_same) {
  const auto before = ::signal(SIGSEGV, [](int) { ::_exit(3); });
  CHECK(WTERMSIG(status_after(Kind::segv)) == SIGSEGV);
  ::signal(SIGSEGV, before);
}

TEST(a_stopped_process_goes_on_after_its_time) {
  const pid_t child = ::fork();
  if (child == 0) {
    strikes_of(Kind::stop, Moment::before, 0.2).strike(Moment::before);
    ::_exit(::waitpid(-1, nullptr, 0) < 0 && errno == ECHILD ? 0 : 1);  // its helper is gone
  }
  int status = 0;
  ::waitpid(child, &status, WUNTRACED);
  CHECK(WIFSTOPPED(status));
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(who_kills_a_stopped_process_leaves_no_helper_behind) {
  const pid_t child = ::fork();
  if (child == 0) {
    strikes_of(Kind::stop, Moment::before, 600).strike(Moment::before);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, WUNTRACED);
  const std::string children =
      "/proc/" + std::to_string(child) + "/task/" + std::to_string(child) + "/children";
  std::ifstream file(children);
  pid_t helper = 0;
  file >> helper;
  CHECK(helper > 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  // The helper is nobody's child here, so it is asked for by its number. A zombie waits for init alone.
  const auto runs = [&] {
    std::ifstream stat("/proc/" + std::to_string(helper) + "/stat");
    std::string number, name, state;
    return (stat >> number >> name >> state) && state != "Z" && state != "X";
  };
  while (runs() && std::chrono::steady_clock::now() < deadline) ::usleep(1000);
  CHECK(!runs());
}

TEST(a_fault_strikes_in_its_moment_alone) {
  auto strikes = strikes_of(Kind::stall, Moment::after, 0.05);
  const auto begin = std::chrono::steady_clock::now();
  strikes.strike(Moment::before);
  std::uint64_t before = 0, after = 0;
  struck(before);
  strikes.strike(Moment::after);
  struck(after);
  CHECK_EQ(after, before + 1);
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(50));
}

TEST(a_moved_block_strikes_once) {
  auto strikes = strikes_of(Kind::stall, Moment::during, 0.001);
  std::uint64_t before = 0, after = 0;
  struck(before);
  moved();  // of no operation
  {
    const Running running(&strikes);
    moved();
    moved();
  }
  moved();
  struck(after);
  CHECK_EQ(after, before + 1);
}

TEST(bits_are_flipped_and_put_back) {
  std::vector<std::byte> buffer(64), same(64);
  auto strikes = strikes_of(Kind::corrupt, Moment::before, 5);
  auto damage = strikes.damage(Moment::before, buffer, 4, {});
  CHECK(buffer != same);
  strikes_of(Kind::corrupt, Moment::before, 5).damage(Moment::after, same, 4, {});  // not its moment
  damage.undo();
  CHECK(buffer == same);
}

TEST(the_same_fault_flips_the_same_bits) {
  std::vector<std::byte> one(64), other(64);
  strikes_of(Kind::corrupt, Moment::after, 3).damage(Moment::after, one, 4, {});
  strikes_of(Kind::corrupt, Moment::after, 3).damage(Moment::after, other, 4, {});
  CHECK(one == other);
}

TEST(one_element_becomes_nan) {
  std::vector<float> numbers(10, 1.0f);
  const std::vector<std::byte> nan(4, std::byte{0xff});
  auto strikes = strikes_of(Kind::nan, Moment::after);
  strikes.damage(Moment::after, std::as_writable_bytes(std::span(numbers)), 4, nan);
  CHECK_EQ(std::ranges::count_if(numbers, [](float x) { return x != x; }), 1);
}

TEST(a_plan_that_is_off_decides_nothing) {
  CHECK(!on());
  CHECK(decide({.op = "all_reduce"}) == nullptr);
  const auto plan = std::make_shared<Plan>(std::vector<Rule>{{.kind = Kind::stall}}, 0);
  CHECK(switch_on(plan) == nullptr);
  CHECK(on() && decide({.op = "all_reduce"}) != nullptr);
  CHECK(switch_on(nullptr) == plan);
  CHECK(!on() && ever_on());
}

TEST(the_log_has_a_fault_before_it_strikes) {
  char path[] = "/tmp/vccl_faults_XXXXXX";
  ::close(::mkstemp(path));
  set_log(path);
  identify({.rank = 1});
  status_after(Kind::kill);
  set_log("");
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  ::unlink(path);
  CHECK(line.find("\"rank\": 1, \"kind\": \"kill\", \"at\": \"before\", \"place\": \"all_reduce\"") == 1);
}

TEST_MAIN
