#include "csrc_device/torch/races/processes.hpp"

#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <unordered_map>
#include <utility>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/races/state.hpp"
#include "csrc_device/torch/streams.hpp"
#include "sanitizer/processes.hpp"

namespace vdev::races {

using sanitizer::ByteReader;
using sanitizer::ByteWriter;
using sanitizer::ClockEntry;
using sanitizer::Journal;
using sanitizer::LaneNumber;
using sanitizer::SharedAccess;
using sanitizer::SharedClock;
using sanitizer::SharedRace;

namespace {

std::uint64_t random_number() {
  std::random_device device;
  return base::mix_bits((std::uint64_t{device()} << 32) ^ device() ^ static_cast<std::uint64_t>(getpid()));
}

// All processes get the same number for a name.
LaneNumber number_of(std::string_view name) {
  return base::mix_bits(base::hash_text(name));
}

/// Puts what a report says of an access into the text that goes with it.
std::string text_of_access(Watch& watch, int rank, Lane lane, Site site, const Touched* touched) {
  const SiteText its = watch.sites.text_of(site);
  const LaneText who = watch.lanes.text_of(lane);
  ByteWriter to;
  to.text(its.call);
  to.text(its.line.file);
  to.text(its.line.function);
  to.number(static_cast<std::uint64_t>(its.line.number));
  to.text(who.text);
  to.number(static_cast<std::uint64_t>(who.kind));
  to.number(static_cast<std::uint64_t>(who.card));
  to.number(static_cast<std::uint64_t>(who.stream));
  to.number(static_cast<std::uint64_t>(rank));
  to.number(static_cast<std::uint64_t>(getpid()));
  to.number(touched != nullptr ? touched->access.memory.begin() : 0);
  to.text(touched != nullptr ? touched->dtype : "");
  to.number(touched != nullptr ? touched->shape.size() : 0);
  if (touched != nullptr)
    for (const auto size : touched->shape) to.number(static_cast<std::uint64_t>(size));
  return to.take();
}

struct AccessText {
  SiteText site;
  LaneText lane;
  int rank = -1, pid = 0;
  std::uintptr_t address = 0;
  std::string dtype;
  std::vector<std::int64_t> shape;
};

AccessText parsed(std::string_view text) {
  ByteReader from(text);
  AccessText its;
  its.site.call = from.text();
  its.site.line.file = from.text();
  its.site.line.function = from.text();
  its.site.line.number = static_cast<int>(from.number());
  its.lane.text = from.text();
  its.lane.kind = static_cast<LaneText::Kind>(from.number());
  its.lane.card = static_cast<int>(from.number());
  its.lane.stream = static_cast<std::int64_t>(from.number());
  its.rank = static_cast<int>(from.number());
  its.pid = static_cast<int>(from.number());
  its.address = from.number();
  its.dtype = from.text();
  its.shape.resize(from.count(sizeof(std::uint64_t)));
  for (auto& size : its.shape) size = static_cast<std::int64_t>(from.number());
  return its;
}

}  // namespace

/// Knows what this process shares with others. The lanes and meetings of others have lanes of their own in
/// this process's clocks, so that all that orders its own lanes carries them along.
class Processes {
 public:
  explicit Processes(Watch& watch) : watch_(watch) {}

  std::string share(const c10::Storage& storage, int rank) {
    const std::lock_guard lock(mutex_);
    rank_ = rank;
    const void* base = storage.data();
    const auto block = reinterpret_cast<std::uint64_t>(base);
    auto& journal = own_journal();
    if (blocks_.try_emplace(base, Block{journal, block, 0, storage.nbytes()}).second) {
      for (const auto& past : watch_.detector.past_of(base)) {
        append(*journal,
               SharedAccess{.block = block,
                            .memory = past.memory,
                            .writes = past.action.writes,
                            .lane = number_of_lane(past.action.lane).lane,
                            .time = past.action.time,
                            .clock = {},
                            .text = text_of_access(watch_, rank_, past.action.lane, past.action.site, {})});
      }
    }
    const auto stream = current_stream(storage.device().index());
    const auto name = journal->name();
    ByteWriter to;
    for (const auto number : {name.pid, name.descriptor, name.device, name.inode, own_, block})
      to.number(number);
    to.text(to_bytes(shared(*host_point())));
    to.text(to_bytes(shared(*point_of(*stream))));
    return to.take();
  }

  void receive(const c10::Storage& storage, std::string_view sent, int rank) {
    ByteReader from(sent);
    const sanitizer::JournalName name{from.number(), from.number(), from.number(), from.number()};
    const auto owner = from.number(), block = from.number();
    const auto host = sanitizer::clock_from(from.text()), stream = sanitizer::clock_from(from.text());
    if (!from.at_end() || !host || !stream || owner == own_) return;
    const std::lock_guard lock(mutex_);
    rank_ = rank;
    auto& journal = journals_[owner];
    if (!journal) journal = Journal::open(name);
    if (!journal) return;
    const auto base = reinterpret_cast<std::uint64_t>(storage.data());
    blocks_.insert_or_assign(
        storage.data(), Block{journal, block, static_cast<std::int64_t>(block - base), storage.nbytes()});
    watch_.detector.wait(host_lane(), local(*host));
    races::wait(*current_stream(storage.device().index()), local(*stream));
    sharing.store(true, std::memory_order_relaxed);
  }

  void publish(LaneNumber meeting, std::uint64_t number, const SharedClock& clock) {
    sanitizer::JournalRecord record{own_, sanitizer::Publication{meeting, number, clock}, {}};
    const std::string bytes = to_bytes(record);
    for (const auto& [owner, journal] : journals_) journal->append(bytes);
  }

  void publish_host(std::string_view channel, bool ends) {
    const std::lock_guard lock(mutex_);
    publish(number_of(channel), ++published_, ends ? everything() : shared(*host_point()));
  }

  Point published_by_hosts(std::string_view channel) {
    const std::lock_guard lock(mutex_);
    read();
    return local(past_.published(number_of(channel)));
  }

  void publish_event(std::string_view identity, const Point& record) {
    const std::lock_guard lock(mutex_);
    own_journal();
    // The last record of all processes counts: the journal's order decides.
    publish(number_of(identity), ++published_, shared(*record));
  }

  Point record_of_event(std::string_view identity) {
    const std::lock_guard lock(mutex_);
    read();
    const auto found = last_record_.find(number_of(identity));
    return found != last_record_.end() ? local(found->second) : nullptr;
  }

  std::uint64_t next_meeting(const std::string& name) {
    const std::lock_guard lock(mutex_);
    return ++meetings_[name];
  }

  void come_to(const Meeting& meeting, const Point& before) {
    const std::lock_guard lock(mutex_);
    publish(number_of(meeting.name), meeting.number, shared(*before));
  }

  Point end_of(const Meeting& meeting) {
    const std::lock_guard lock(mutex_);
    return local({ClockEntry{number_of(meeting.name), meeting.number, meeting.publishers}});
  }

  void note(Lane lane, Site site, const std::vector<Touched>& touched, const Point& behind) {
    {
      const std::lock_guard lock(mutex_);
      SharedClock clock;
      for (const Touched& each : touched) {
        const Block* block = block_of(each.access);
        if (block == nullptr) continue;
        if (clock.empty()) clock = shared(*behind);
        append(*block->journal, SharedAccess{.block = block->number,
                                             .memory = each.access.memory.shifted(block->distance),
                                             .writes = each.access.writes,
                                             .lane = number_of_lane(lane).lane,
                                             .time = (*behind)[lane],
                                             .clock = clock,
                                             .text = text_of_access(watch_, rank_, lane, site, &each)});
      }
      if (clock.empty()) return;
    }
    judge();
  }

  void judge() {
    std::vector<SharedRace> found;
    {
      const std::lock_guard lock(mutex_);
      read();
      found = past_.races();
    }
    report(found);
  }

  void forget(const void* base) {
    const std::lock_guard lock(mutex_);
    blocks_.erase(base);
  }

 private:
  struct Block {
    std::shared_ptr<Journal> journal;
    std::uint64_t number;
    std::int64_t distance;  // from this process's addresses to those of the owner
    std::size_t bytes;
  };

  std::shared_ptr<Journal>& own_journal() {
    auto& journal = journals_[own_];
    if (!journal) journal = Journal::make();
    sharing.store(true, std::memory_order_relaxed);
    return journal;
  }

  void append(Journal& journal, SharedAccess access) {
    journal.append(to_bytes(sanitizer::JournalRecord{own_, {}, std::move(access)}));
  }

  void read() {
    for (const auto& [owner, journal] : journals_) {
      journal->read_new([&](std::string_view bytes) {
        auto record = sanitizer::record_from(bytes);
        if (!record) return;
        if (record->publication) last_record_[record->publication->meeting] = record->publication->clock;
        past_.take(std::move(*record));
      });
    }
  }

  const Block* block_of(const Access& access) const {
    auto found = blocks_.upper_bound(reinterpret_cast<const void*>(access.memory.begin()));
    if (found == blocks_.begin()) return nullptr;
    --found;
    const auto begin = reinterpret_cast<std::uintptr_t>(found->first);
    return access.memory.begin() < begin + found->second.bytes ? &found->second : nullptr;
  }

  /// Returns the entry of a lane of this process's clocks, without a time.
  ClockEntry number_of_lane(Lane lane) const {
    const auto found = others_.find(lane);
    return found != others_.end() ? found->second : ClockEntry{base::mix_bits(own_ + lane), 0, 0};
  }

  SharedClock shared(const sanitizer::VectorClock& clock) const {
    SharedClock entries;
    for (Lane lane = 0; lane < clock.size(); ++lane) {
      if (clock[lane] == 0) continue;
      entries.push_back(number_of_lane(lane));
      entries.back().time = clock[lane];
    }
    return entries;
  }

  SharedClock everything() {
    sanitizer::VectorClock all;
    for (Lane lane = 0; lane < watch_.lanes.count(); ++lane) all.join(*watch_.detector.point(lane));
    return shared(all);
  }

  Point local(const SharedClock& entries) {
    sanitizer::VectorClock clock;
    for (const ClockEntry& entry : entries) {
      const Lane lane = local_lane(entry);
      if (clock[lane] < entry.time) clock.set(lane, entry.time);
    }
    return watch_.detector.point_from(std::move(clock));
  }

  Lane local_lane(const ClockEntry& entry) {
    // The lanes of this process come back to it in what others publish.
    for (; numbered_ < watch_.lanes.count(); ++numbered_)
      if (!others_.contains(numbered_)) lanes_.emplace(base::mix_bits(own_ + numbered_), numbered_);
    const auto found = lanes_.find(entry.lane);
    if (found != lanes_.end()) return found->second;
    const Lane lane = watch_.lanes.of(this, static_cast<std::int64_t>(entry.lane),
                                      [] { return LaneText{LaneText::Kind::host, "another process", -1}; });
    others_.emplace(lane, ClockEntry{entry.lane, 0, entry.publishers});
    lanes_.emplace(entry.lane, lane);
    return lane;
  }

  void report(const std::vector<SharedRace>& races) {
    for (const SharedRace& race : races) {
      AccessText first = parsed(race.first.text), second = parsed(race.second.text);
      Report report{.first = std::move(first.site),
                    .second = std::move(second.site),
                    .first_lane = std::move(first.lane),
                    .second_lane = std::move(second.lane),
                    .address = second.address,
                    .shape = std::move(second.shape),
                    .dtype = std::move(second.dtype)};
      report.race.first.writes = race.first.writes;
      report.race.second.writes = race.second.writes;
      report.first_process =
          first.rank >= 0 ? base::text("rank ", first.rank) : base::text("process ", first.pid);
      report.first_rank = first.rank;
      watch_.report(report);
    }
  }

  Watch& watch_;
  const std::uint64_t own_ = random_number();
  std::mutex mutex_;  // guards everything below
  int rank_ = -1;     // of this process in its job, or -1
  sanitizer::SharedPast past_{own_};
  std::map<std::uint64_t, std::shared_ptr<Journal>> journals_;  // by the number of the process that made it
  std::map<const void*, Block> blocks_;                         // by this process's address
  std::unordered_map<LaneNumber, SharedClock> last_record_;     // of an event
  std::unordered_map<Lane, ClockEntry> others_;                 // the lanes here that stand for others
  std::unordered_map<LaneNumber, Lane> lanes_;
  Lane numbered_ = 0;  // the lanes below are in one of the two
  std::uint64_t published_ = 0;
  std::map<std::string, std::uint64_t> meetings_;  // how many there were, by their names
};

namespace {

Processes& processes() {
  Watch& watch = Watch::get();
  const std::lock_guard lock(watch.mutex);
  if (!watch.processes) watch.processes = std::make_shared<Processes>(watch);
  return *watch.processes;
}

}  // namespace

std::string share(const c10::Storage& storage, int rank) {
  return processes().share(storage, rank);
}

void receive(const c10::Storage& storage, std::string_view sent, int rank) {
  processes().receive(storage, sent, rank);
}

void publish_host(std::string_view channel, bool ends) {
  processes().publish_host(channel, ends);
}

void wait_for_hosts(std::string_view channel) {
  host_waits_for(processes().published_by_hosts(channel));
}

void publish_event(std::string_view identity, const Point& record) {
  processes().publish_event(identity, record);
}

Point record_of_event(std::string_view identity) {
  return processes().record_of_event(identity);
}

std::uint64_t next_meeting(const std::string& name) {
  return processes().next_meeting(name);
}

void come_to(const Meeting& meeting, const Point& before) {
  processes().come_to(meeting, before);
}

Point end_of(const Meeting& meeting) {
  return processes().end_of(meeting);
}

void note_shared(Lane lane, Site site, const std::vector<Touched>& touched, const Point& behind) {
  processes().note(lane, site, touched, behind);
}

void judge_shared() {
  processes().judge();
}

void forget_shared(const void* block) {
  processes().forget(block);
}

}  // namespace vdev::races
