// Pages are refused before the machine has none left, and what one process takes at once is bounded.
#include "csrc_device/runtime/memory/page_budget.hpp"

#include <cstdlib>
#include <string>

#include "tests/native/check.hpp"

using namespace vdev;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kMargin = 32 * kMiB;

/// A machine whose memory is what the test says, and less whatever was taken.
struct Machine {
  std::size_t left;
  int questions = 0;

  PageBudget budget() {
    return PageBudget(
        [this] {
          ++questions;
          return MachineRoom{left, "the test's limit"};
        },
        kMargin);
  }
};

/// Takes all of `wanted` in steps, as back_with_pages() does. Returns whether that succeeded.
bool take_all(Machine& machine, PageBudget& budget, std::size_t wanted) {
  while (wanted != 0) {
    const std::size_t taken = budget.take(wanted);
    if (taken == 0) return false;
    CHECK(taken <= wanted && taken <= 64 * kMiB);
    machine.left -= taken;
    wanted -= taken;
  }
  return true;
}

}  // namespace

TEST(the_margin_is_left) {
  Machine machine{1024 * kMiB};
  PageBudget budget = machine.budget();
  CHECK(!take_all(machine, budget, 993 * kMiB));
  CHECK_EQ(machine.left, 1024 * kMiB);  // what cannot succeed takes nothing
  CHECK_EQ(budget.room(), 992 * kMiB);
  CHECK(take_all(machine, budget, 960 * kMiB));
  CHECK(!take_all(machine, budget, 64 * kMiB));
  CHECK(machine.left >= kMargin);
}

TEST(small_requests_never_take_the_margin_and_do_not_ask_each_time) {
  Machine machine{1024 * kMiB};
  PageBudget budget = machine.budget();
  int requests = 0;
  while (take_all(machine, budget, kMiB / 16)) ++requests;
  CHECK(machine.left >= kMargin && machine.left < kMargin + kMiB);
  CHECK(machine.questions < requests / 4);
}

TEST(a_machine_below_the_margin_has_no_room) {
  Machine machine{kMargin / 2};
  CHECK_EQ(machine.budget().room(), std::size_t{0});
}

TEST(ordinary_memory_gets_pages) {
  constexpr std::size_t kPages = 3 * 4096;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(4096, kPages));
  CHECK(back_with_pages(memory, kPages));
  std::free(memory);
}

TEST(the_explanation_names_the_limit) {
  Machine machine{100 * kMiB};
  const std::string text = machine.budget().explanation();
  CHECK(text.find("100 MiB") != std::string::npos);
  CHECK(text.find("the test's limit") != std::string::npos);
}

TEST(without_a_limit_everything_is_granted) {
  PageBudget budget([] { return MachineRoom{}; }, kMargin);
  CHECK(budget.take(std::size_t{1} << 40) != 0);
}

TEST_MAIN
