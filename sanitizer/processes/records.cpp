#include "sanitizer/processes/records.hpp"

#include "sanitizer/processes/bytes.hpp"

namespace sanitizer {
namespace {

enum Kind : std::uint64_t { kPublication = 1, kAccess = 2 };

void write(ByteWriter& to, const SharedClock& clock) {
  to.number(clock.size());
  for (const auto& entry : clock) {
    to.number(entry.lane);
    to.number(entry.time);
    to.number(entry.publishers);
  }
}

SharedClock read_clock(ByteReader& from) {
  SharedClock clock(from.count(3 * sizeof(std::uint64_t)));
  for (auto& entry : clock) {
    entry.lane = from.number();
    entry.time = from.number();
    entry.publishers = static_cast<std::uint32_t>(from.number());
  }
  return clock;
}

void write(ByteWriter& to, const Footprint& memory) {
  const auto numbers = memory.numbers();
  to.number(numbers.size());
  for (const auto number : numbers) to.number(static_cast<std::uint64_t>(number));
}

std::optional<Footprint> read_footprint(ByteReader& from) {
  std::vector<std::int64_t> numbers(from.count(sizeof(std::uint64_t)));
  for (auto& number : numbers) number = static_cast<std::int64_t>(from.number());
  return Footprint::from_numbers(numbers);
}

}  // namespace

std::string to_bytes(const JournalRecord& record) {
  ByteWriter to;
  to.number(record.process);
  if (record.publication) {
    to.number(kPublication);
    to.number(record.publication->meeting);
    to.number(record.publication->number);
    write(to, record.publication->clock);
    return to.take();
  }
  const SharedAccess& access = *record.access;
  to.number(kAccess);
  to.number(access.block);
  write(to, access.memory);
  to.number(access.writes);
  to.number(access.lane);
  to.number(access.time);
  write(to, access.clock);
  to.text(access.text);
  return to.take();
}

std::optional<JournalRecord> record_from(std::string_view bytes) {
  ByteReader from(bytes);
  JournalRecord record;
  record.process = from.number();
  const auto kind = from.number();
  if (kind == kPublication) {
    Publication publication;
    publication.meeting = from.number();
    publication.number = from.number();
    publication.clock = read_clock(from);
    record.publication = std::move(publication);
  } else if (kind == kAccess) {
    SharedAccess access;
    access.block = from.number();
    auto memory = read_footprint(from);
    if (!memory) return std::nullopt;
    access.memory = std::move(*memory);
    access.writes = from.number() != 0;
    access.lane = from.number();
    access.time = from.number();
    access.clock = read_clock(from);
    access.text = from.text();
    record.access = std::move(access);
  } else {
    return std::nullopt;
  }
  if (!from.at_end()) return std::nullopt;
  return record;
}

std::string to_bytes(const SharedClock& clock) {
  ByteWriter to;
  write(to, clock);
  return to.take();
}

std::optional<SharedClock> clock_from(std::string_view bytes) {
  ByteReader from(bytes);
  auto clock = read_clock(from);
  if (!from.at_end()) return std::nullopt;
  return clock;
}

}  // namespace sanitizer
