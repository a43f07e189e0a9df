#include "transport/state/far_record.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "transport/support/protocol.hpp"

namespace vccl {
namespace {

using msgpack::Array;
using msgpack::Map;
using msgpack::Value;

Value encoded(const PublishedWait& wait) {
  const auto first = [&](const auto& numbers) {
    return Array(numbers.begin(), numbers.begin() + wait.awaited_count);
  };
  return Map{{"communicator", wait.communicator},
             {"any", wait.any == 1},
             {"awaited", first(wait.awaited)},
             {"states", first(wait.states)},
             {"text", wait.to_string()}};
}

PublishedWait decoded_wait(const Value& value) {
  PublishedWait wait{};
  wait.communicator = value.at("communicator").as_uint();
  wait.any = value.at("any").as_bool() ? 1 : 0;
  const Array& awaited = value.at("awaited").as_array();
  const Array& states = value.at("states").as_array();
  if (awaited.size() > PublishedWait::kMaxAwaited || states.size() != awaited.size())
    throw msgpack::Malformed("a wait for too many processes");
  wait.awaited_count = static_cast<std::uint32_t>(awaited.size());
  for (std::size_t i = 0; i < awaited.size(); ++i) {
    wait.awaited[i] = awaited[i].as_uint();
    wait.states[i] = states[i].as_uint();
  }
  const auto text = base::cut_text(value.at("text").as_string(), PublishedWait::kMaxText);
  wait.length = static_cast<std::uint32_t>(text.size());
  std::ranges::copy(text, wait.text.begin());
  return wait;
}

/// Returns the numbers of an array, in threes.
std::vector<std::array<std::uint64_t, 3>> triples(const Value& value) {
  const Array& numbers = value.as_array();
  if (numbers.size() % 3 != 0 || numbers.size() > 3 * WaitFacts::kMost)
    throw msgpack::Malformed("numbers that are not in threes, or too many");
  std::vector<std::array<std::uint64_t, 3>> all;
  for (std::size_t i = 0; i < numbers.size(); i += 3)
    all.push_back({numbers[i].as_uint(), numbers[i + 1].as_uint(), numbers[i + 2].as_uint()});
  return all;
}

}  // namespace

bool WaitFacts::has_not_begun(std::uint64_t communicator, std::uint64_t number, bool is_meeting) const {
  const auto found = std::ranges::find(begun, communicator, &Begun::communicator);
  return found != begun.end() && (is_meeting ? found->meetings : found->operations) < number;
}

bool WaitFacts::has_heard_all(std::uint64_t communicator, Token to, std::uint64_t heard) const {
  const auto found = std::ranges::find_if(
      sent, [&](const Sent& entry) { return entry.communicator == communicator && entry.to == to; });
  return found != sent.end() ? found->messages == heard : lists_all_sent && heard == 0;
}

std::string far_key(Token token) {
  return base::text(token);
}

std::string encode(const FarRecord& record) {
  const PublishedWaits& own = record.copy.waits;
  Array waits, begun, sent;
  for (std::uint32_t i = 0; i < own.count; ++i) waits.push_back(encoded(own.waits[i]));
  for (const auto& entry : record.facts.begun)
    begun.insert(begun.end(), {entry.communicator, entry.operations, entry.meetings});
  for (const auto& entry : record.facts.sent)
    sent.insert(sent.end(), {entry.communicator, entry.to, entry.messages});
  return encode_record({{"version", record.copy.version},
                        {"looks", record.copy.looks},
                        {"concluded", record.copy.concluded},
                        {"blocked", own.blocked == 1},
                        {"rank", own.rank},
                        {"state", own.state},
                        {"waits", std::move(waits)},
                        {"begun", std::move(begun)},
                        {"sent", std::move(sent)},
                        {"all_sent", record.facts.lists_all_sent}});
}

FarRecord decode_far_record(const std::string& bytes) {
  const Value value = read_record(bytes, -1);
  FarRecord record;
  record.copy.version = value.at("version").as_uint();
  record.copy.looks = value.at("looks").as_uint();
  record.copy.concluded = value.at("concluded").as_bool();
  PublishedWaits& waits = record.copy.waits;
  waits.blocked = value.at("blocked").as_bool() ? 1 : 0;
  waits.rank = value.at("rank").as_uint();
  waits.state = value.at("state").as_uint();
  const Array& list = value.at("waits").as_array();
  if (list.size() > PublishedWaits::kMax) throw msgpack::Malformed("too many waits");
  for (const Value& wait : list) waits.waits[waits.count++] = decoded_wait(wait);
  for (const auto& [communicator, operations, meetings] : triples(value.at("begun")))
    record.facts.begun.push_back({communicator, operations, meetings});
  for (const auto& [communicator, to, messages] : triples(value.at("sent")))
    record.facts.sent.push_back({communicator, to, messages});
  record.facts.lists_all_sent = value.at("all_sent").as_bool();
  return record;
}

}  // namespace vccl
