// What processes tell each other of shared memory: the journal, and the verdicts against an oracle that knows
// the whole order in the end.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "sanitizer/processes/journal.hpp"
#include "sanitizer/processes/records.hpp"
#include "sanitizer/processes/shared_past.hpp"
#include "tests/native/check.hpp"

using namespace sanitizer;

namespace {

Footprint range(std::uintptr_t begin, std::size_t bytes) {
  return Footprint(reinterpret_cast<const void*>(begin), bytes);
}

SharedAccess access_to(LaneNumber lane, Time time, SharedClock clock, bool writes) {
  return {.block = 1,
          .memory = range(0x1000, 8),
          .writes = writes,
          .lane = lane,
          .time = time,
          .clock = std::move(clock),
          .text = "here"};
}

TEST(records_survive_the_journal) {
  const std::int64_t sizes[] = {3, 4}, strides[] = {10, 2};
  SharedAccess access = access_to(5, 6, {{5, 6, 0}, {7, 8, 2}}, true);
  access.memory = Footprint(reinterpret_cast<const void*>(0x1000), 4, sizes, strides);
  const auto journal = Journal::make();
  const auto other = Journal::open(journal->name());
  CHECK(other != nullptr);
  journal->append(to_bytes(JournalRecord{1, {}, access}));
  other->append(to_bytes(JournalRecord{2, Publication{9, 10, {{5, 6, 0}}}, {}}));
  std::vector<JournalRecord> seen;
  other->read_new([&](std::string_view bytes) { seen.push_back(*record_from(bytes)); });
  CHECK(seen.size() == 2 && seen[0].process == 1 && seen[1].process == 2);
  CHECK(seen[0].access->text == "here" && seen[0].access->clock[1].publishers == 2);
  CHECK(seen[0].access->memory.numbers() == access.memory.numbers());
  CHECK(seen[1].publication->meeting == 9 && seen[1].publication->number == 10);
  JournalName gone = journal->name();
  gone.inode += 1;
  CHECK(Journal::open(gone) == nullptr);
}

TEST(mutated_records_are_refused) {
  const std::string right = to_bytes(JournalRecord{1, {}, access_to(5, 6, {{5, 6, 0}, {7, 8, 2}}, true)});
  std::mt19937 numbers(7);
  for (int i = 0; i < 100000; ++i) {
    std::string bytes = right.substr(0, numbers() % (right.size() + 1));
    for (int j = 0; j < 3 && !bytes.empty(); ++j)
      bytes[numbers() % bytes.size()] = static_cast<char>(numbers());
    if (const auto record = record_from(bytes); record && record->access)
      record->access->memory.overlaps(range(0x1000, 8));
  }
}

TEST(several_threads_append_whole_records) {
  const auto journal = Journal::make();
  std::vector<std::thread> threads;
  for (ProcessNumber number = 1; number <= 4; ++number)
    threads.emplace_back([&, number] {
      const auto own = Journal::open(journal->name());
      for (Time i = 1; i <= 200; ++i)
        own->append(to_bytes(JournalRecord{number, Publication{1, i, SharedClock(number * 50)}, {}}));
    });
  std::map<ProcessNumber, Time> last;
  std::size_t seen = 0;
  const auto read = [&] {
    journal->read_new([&](std::string_view bytes) {
      const auto record = record_from(bytes);
      CHECK(record && record->publication->number == ++last[record->process]);
      ++seen;
    });
  };
  while (seen < 400) read();
  for (auto& thread : threads) thread.join();
  read();
  CHECK(seen == 800);
}

/// Some processes with some lanes each, which touch one allocation and meet.
class Program {
 public:
  Program(std::uint32_t seed, int processes, int lanes)
      : numbers_(seed), lanes_(lanes), state_(static_cast<std::size_t>(processes * lanes)) {
    for (int process = 0; process < processes; ++process) past_.emplace_back(number_of(process));
    has_come_.resize(static_cast<std::size_t>(processes));
    for (std::size_t i = 0; i < state_.size(); ++i) state_[i].number = 1000 + i;
  }

  void play(int steps) {
    for (int i = 0; i < steps; ++i) step();
    // Everybody comes to the meetings that somebody has come to.
    const auto most = *std::ranges::max_element(has_come_);
    for (int process = 0; process < processes(); ++process)
      while (has_come_[static_cast<std::size_t>(process)] < most) meet(process, 0);
    check();
  }

 private:
  struct Lane {
    LaneNumber number = 0;
    Time time = 0;
    std::map<LaneNumber, ClockEntry> clock;
    std::set<int> before;  // the nodes that the oracle knows to come before
  };
  struct Node {  // an access, or one process's part of a meeting
    std::set<int> before;
    int process;
    bool is_access, writes;
    Footprint memory;
  };
  static constexpr LaneNumber kMeeting = 7;

  int processes() const { return static_cast<int>(past_.size()); }
  static ProcessNumber number_of(int process) { return static_cast<ProcessNumber>(process) + 1; }
  int pick(int below) { return static_cast<int>(numbers_() % static_cast<unsigned>(below)); }
  Lane& lane_of(int process, int lane) { return state_[static_cast<std::size_t>(process * lanes_ + lane)]; }

  void step() {
    const int process = pick(processes()), lane = pick(lanes_);
    switch (pick(6)) {
      case 0:
        return meet(process, 0);  // the meetings of one name are in order on each member
      case 1:
        return wait(lane_of(process, lane), lane_of(process, pick(lanes_)));
      default:
        return touch(process, lane);
    }
  }

  static SharedClock clock_of(const Lane& lane) {
    SharedClock clock;
    for (const auto& [number, entry] : lane.clock) clock.push_back(entry);
    return clock;
  }

  void wait(Lane& waiter, const Lane& other) {
    if (&waiter == &other) return;
    for (const auto& [number, entry] : other.clock) {
      auto& own = waiter.clock[number];
      if (own.time < entry.time) own = entry;
    }
    waiter.before.insert(other.before.begin(), other.before.end());
  }

  void touch(int process, int number) {
    Lane& lane = lane_of(process, number);
    lane.clock[lane.number] = {lane.number, ++lane.time, 0};
    SharedAccess access = access_to(lane.number, lane.time, clock_of(lane), pick(2) == 0);
    access.memory = range(0x1000 + 8 * static_cast<std::uintptr_t>(pick(3)), 8);
    access.text = std::to_string(nodes_.size());
    add(lane, {lane.before, process, true, access.writes, access.memory});
    append({number_of(process), {}, access});
  }

  /// The part of a meeting comes behind the parts of all others, once they are there.
  void meet(int process, int number) {
    Lane& lane = lane_of(process, number);
    const auto meeting = static_cast<std::size_t>(has_come_[static_cast<std::size_t>(process)]++);
    append({number_of(process), Publication{kMeeting, meeting + 1, clock_of(lane)}, {}});
    lane.clock[kMeeting] = {kMeeting, meeting + 1, static_cast<std::uint32_t>(processes())};
    if (meetings_.size() <= meeting) meetings_.resize(meeting + 1);
    auto& [entered, left] = meetings_[meeting];
    entered.insert(lane.before.begin(), lane.before.end());
    const int end = static_cast<int>(nodes_.size());
    left.push_back(end);
    add(lane, {lane.before, process, false, false, {}});
  }

  void add(Lane& lane, Node node) {
    lane.before.insert(static_cast<int>(nodes_.size()));
    nodes_.push_back(std::move(node));
  }

  void append(const JournalRecord& record) {
    const auto bytes = to_bytes(record);
    for (int process = 0; process < processes(); ++process) {
      past_[static_cast<std::size_t>(process)].take(*record_from(bytes));
      if (pick(2) == 0) collect(process);
    }
  }

  void collect(int process) {
    for (const auto& race : past_[static_cast<std::size_t>(process)].races())
      found_.insert(std::stoi(race.second.text));
  }

  void check() {
    for (int process = 0; process < processes(); ++process) collect(process);
    for (const auto& [entered, left] : meetings_)
      for (const int end : left)
        nodes_[static_cast<std::size_t>(end)].before.insert(entered.begin(), entered.end());
    for (bool any = true; any;) {  // the closure
      any = false;
      for (Node& node : nodes_) {
        const auto known = node.before.size();
        for (const int before : std::set<int>(node.before)) {
          const auto& more = nodes_[static_cast<std::size_t>(before)].before;
          node.before.insert(more.begin(), more.end());
        }
        any |= node.before.size() != known;
      }
    }
    for (std::size_t second = 0; second < nodes_.size(); ++second) {
      bool races = false;
      for (std::size_t first = 0; first < second; ++first) races |= race(first, second);
      CHECK(races == found_.contains(static_cast<int>(second)));
    }
  }

  bool race(std::size_t first, std::size_t second) const {
    const Node &a = nodes_[first], &b = nodes_[second];
    return a.is_access && b.is_access && a.process != b.process && (a.writes || b.writes) &&
           a.memory.overlaps(b.memory) && !b.before.contains(static_cast<int>(first)) &&
           !a.before.contains(static_cast<int>(second));
  }

  std::mt19937 numbers_;
  const int lanes_;
  std::vector<Lane> state_;
  std::vector<SharedPast> past_;
  std::vector<int> has_come_;
  std::vector<std::pair<std::set<int>, std::vector<int>>> meetings_;
  std::vector<Node> nodes_;
  std::set<int> found_;
};

TEST(random_programs_agree_with_the_oracle) {
  for (std::uint32_t seed = 0; seed < 1500; ++seed)
    Program(seed, 2 + static_cast<int>(seed % 2), 1 + static_cast<int>(seed % 3)).play(40);
}

}  // namespace

TEST_MAIN
