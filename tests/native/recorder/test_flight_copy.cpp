// Copies of flight recorders for other hosts: what is left out, how times move, and bytes that are no copy.
#include "recorder/flight_copy.hpp"

#include <cstring>
#include <random>
#include <string>

#include "recorder/flight_dump.hpp"
#include "tests/native/check.hpp"

using namespace vccl;

namespace {

FlightSnapshot::Group group_of(std::uint64_t serial, const char* name = "dp") {
  FlightSnapshot::Group group;
  group.group.serial = serial;
  group.group.open = 1;
  group.group.opened_ns = 1000;
  put_text(group.group.name, name);
  const std::uint64_t ranks[] = {0, 1};
  group.group.set_ranks(ranks);
  group.progress.enqueued = {7, 8};
  return group;
}

FlightEntry entry_of(std::uint64_t number, std::uint32_t serial, bool over) {
  FlightEntry entry;
  entry.number = number;
  entry.group_serial = serial;
  entry.collective_sequence = number + 1;
  entry.created_ns = 2000;
  if (over) entry.completed_ns = 3000;
  put_text(entry.name, "all_reduce");
  const std::int64_t shape[] = {4, 3};
  entry.add_input(6, shape);
  return entry;
}

/// Returns what a process with a group, and entries of which only the first is not over, has recorded.
FlightSnapshot snapshot_of(std::size_t entries) {
  FlightSnapshot snapshot;
  snapshot.process.rank = 3;
  snapshot.process.size = 4;
  snapshot.process.wall_minus_steady_ns = 50'000;
  put_text(snapshot.process.job, "job");
  put_text(snapshot.process.answers, "tcp://10.0.0.1:1 key token ");
  snapshot.groups.push_back(group_of(1));
  for (std::size_t i = 0; i < entries; ++i) snapshot.entries.push_back(entry_of(i, 1, i > 0));
  snapshot.recorded = entries;
  return snapshot;
}

TEST(a_copy_says_what_was_read) {
  const auto copy = decode_copy(encode_copy(snapshot_of(3), 10'000), 10'000);
  CHECK_EQ(copy.process.rank, 3);
  CHECK_EQ(get_text(copy.process.job), std::string("job"));
  CHECK_EQ(copy.groups.size(), std::size_t{1});
  CHECK(copy.groups[0].progress.enqueued == (std::array<std::uint64_t, 2>{7, 8}));
  CHECK_EQ(copy.entries.size(), std::size_t{3});
  CHECK_EQ(get_text(copy.entries[2].name), std::string("all_reduce"));
  CHECK_EQ(copy.entries[2].completed_ns, std::int64_t{3000});
  CHECK_EQ(copy.recorded, std::uint64_t{3});
}

TEST(a_copy_does_not_say_how_to_ask) {
  CHECK_EQ(get_text(decode_copy(encode_copy(snapshot_of(1), 0), 0).process.answers), std::string());
}

// The clock of a host that has run for longer shows more. What was half a second ago there was half a second
// ago here.
TEST(times_are_those_of_the_reader) {
  const auto copy = decode_copy(encode_copy(snapshot_of(2), 10'000), 17'000);
  CHECK_EQ(copy.entries[0].created_ns, std::int64_t{9000});
  CHECK_EQ(copy.entries[0].completed_ns, std::int64_t{0});  // not known stays not known
  CHECK_EQ(copy.entries[1].completed_ns, std::int64_t{10'000});
  CHECK_EQ(copy.groups[0].group.opened_ns, std::int64_t{8000});
  CHECK_EQ(copy.process.wall_minus_steady_ns, std::int64_t{43'000});
}

TEST(what_is_not_over_is_there_however_old) {
  const auto bytes = encode_copy(snapshot_of(2000), 0);
  CHECK(bytes.size() <= kMostCopied);
  const auto copy = decode_copy(bytes, 0);
  CHECK(copy.entries.size() < 2000);
  CHECK_EQ(copy.entries.front().number, std::uint64_t{0});
  CHECK_EQ(copy.entries[1].number, 2000 - (copy.entries.size() - 1));
  CHECK_EQ(copy.entries.back().number, std::uint64_t{1999});
  CHECK_EQ(copy.recorded, std::uint64_t{2000});
}

TEST(the_newest_groups_are_there_with_their_entries) {
  auto snapshot = snapshot_of(1);
  for (std::uint64_t serial = 2; serial <= 300; ++serial) {
    snapshot.groups.push_back(group_of(serial));
    snapshot.entries.push_back(entry_of(serial, static_cast<std::uint32_t>(serial), false));
  }
  const auto bytes = encode_copy(snapshot, 0);
  CHECK(bytes.size() <= kMostCopied);
  const auto copy = decode_copy(bytes, 0);
  CHECK_EQ(copy.groups.back().group.serial, std::uint64_t{300});
  CHECK_EQ(copy.entries.size(), copy.groups.size());
  for (const auto& entry : copy.entries)
    CHECK_EQ(copy.group_of(entry).group.serial, std::uint64_t{entry.group_serial});
}

TEST(stacks_are_cut_between_their_lines) {
  auto snapshot = snapshot_of(3);
  const std::string line = "step\ttrain.py\t12\n", lines = line + std::string(200, 'f') + "\t" + line;
  snapshot.stacks = {line, lines + lines, std::string(300, 'x')};
  const auto copy = decode_copy(encode_copy(snapshot, 0), 0);
  CHECK(copy.stacks == (std::vector<std::string>{line, lines + line, ""}));
}

TEST(bytes_that_are_no_copy_are_refused) {
  const auto bytes = encode_copy(snapshot_of(2), 0);
  CHECK_THROWS(decode_copy("", 0), FlightRefused);
  CHECK_THROWS(decode_copy(bytes.substr(0, bytes.size() - 1), 0), FlightRefused);
  CHECK_THROWS(decode_copy(bytes + "x", 0), FlightRefused);
  CHECK_THROWS(decode_copy(bytes + std::string(kMostCopied, 'x'), 0), FlightRefused);
  auto other = bytes;
  other[8] = 99;
  try {
    (void)decode_copy(other, 0);
    CHECK(false);
  } catch (const FlightRefused& refused) {
    CHECK(std::string(refused.what()).find("version 99") != std::string::npos);
  }
}

TEST(mutated_copies_are_refused_or_sound) {
  std::mt19937_64 random(34);
  const auto bytes = encode_copy(snapshot_of(40), 1'000'000);
  std::size_t refused = 0, used = 0;
  for (int i = 0; i < 20'000; ++i) {
    auto mutated = bytes;
    for (std::uint64_t changes = random() % 8 + 1; changes > 0; --changes)
      mutated[random() % mutated.size()] = static_cast<char>(random());
    try {
      const auto copy = decode_copy(mutated, static_cast<std::int64_t>(random()));
      for (const auto& entry : copy.entries) used += get_text(copy.group_of(entry).group.name).size();
      used += json_of(copy, {}).size();
    } catch (const FlightRefused&) {
      ++refused;
    }
  }
  CHECK(refused > 0);
  CHECK(used > 0);
}

}  // namespace

TEST_MAIN
