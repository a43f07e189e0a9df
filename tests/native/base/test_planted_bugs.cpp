// Schedules find planted bugs, and blame no repaired program.
//
// With an argument, `table`, the program prints how many seeds each kind of schedule needed.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "tests/native/base/planted_bugs.hpp"
#include "tests/native/check.hpp"

namespace {

constexpr int kSeeds = 200;

std::string text_of(const char* kind, int seed) {
  return std::string(kind) + std::to_string(seed);
}

/// Returns how many seeds it takes until a program goes wrong, or 0 if `most` are too few.
int seeds_until_wrong(const bugs::Bug& bug, const char* kind, bool repaired, int most = kSeeds) {
  for (int seed = 1; seed <= most; ++seed)
    if (bug.program(plan_of(text_of(kind, seed)), repaired)) return seed;
  return 0;
}

void print_table() {
  std::printf(
      "| bug | pct:2: first | of 1000 | pct:3: first | of 1000 | random: first | of 1000 "
      "|\n|---|---|---|---|---|---|---|\n");
  for (const auto& bug : bugs::kAll) {
    std::printf("| %s |", bug.name);
    for (const char* kind : {"pct:2:", "pct:3:", "random:"}) {
      int first = 0, found = 0;
      for (int seed = 1; seed <= 1000; ++seed) {
        if (!bug.program(plan_of(text_of(kind, seed)), false)) continue;
        if (first == 0) first = seed;
        ++found;
      }
      std::printf(" %d | %d |", first, found);
    }
    std::printf("\n");
  }
}

}  // namespace

TEST(pct_finds_every_bug) {
  const std::string kind = "pct:2:";
  for (const auto& bug : bugs::kAll) {
    const int seeds = seeds_until_wrong(bug, kind.c_str(), false);
    std::printf("%s: found with seed %d of %s\n", bug.name, seeds, kind.c_str());
    CHECK(seeds > 0);
  }
}

TEST(no_schedule_blames_a_repaired_program) {
  for (const auto& bug : bugs::kAll)
    for (const char* kind : {"pct:2:", "pct:3:", "random:"})
      CHECK_EQ(seeds_until_wrong(bug, kind, true, 60), 0);
}

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "table") == 0) {
    print_table();
    return 0;
  }
  return ::check::run(argc, argv);
}
