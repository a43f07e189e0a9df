#include "csrc_pg/explanations/host_messages.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "base/text.hpp"
#include "recorder/flight_copy.hpp"
#include "transport/msgpack.hpp"
#include "transport/questions.hpp"

namespace vccl {
namespace {

using msgpack::Array;
using msgpack::Binary;
using msgpack::Map;
using msgpack::Value;

constexpr int kMostRank = std::numeric_limits<int>::max();
constexpr std::size_t kMostThreads = 16, kMostFrames = 32, kOutermost = 4;
// Each takes some hundred bytes.
constexpr std::size_t kMostRanksInPart = 500;
constexpr std::size_t kMostFile = 300, kMostFunction = 100;
static_assert(kMostThreads * kMostFrames * (kMostFile + kMostFunction + 64) < kMostInPart);
static_assert(kMostCopied + 128 < kMostInPart);

Value encode_frame(const Frame& frame) {
  Array fields;
  fields.emplace_back(std::string(base::cut_text(frame.file, kMostFile)));
  fields.emplace_back(std::string(base::cut_text(frame.function, kMostFunction)));
  fields.emplace_back(frame.line);
  return fields;
}

Frame decode_frame(const Value& value) {
  const Array& fields = value.as_array();
  if (fields.size() != 3) throw msgpack::Malformed("a frame of a stack has three fields");
  return {base::valid_text(fields[0].as_string()), base::valid_text(fields[1].as_string()),
          static_cast<int>(fields[2].as_int(0, kMostRank))};
}

/// The innermost frames say what a thread does, and the outermost what made the thread.
Array encode_frames(const std::vector<Frame>& frames) {
  Array result;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const bool inner = i < kMostFrames - kOutermost, outer = frames.size() - i <= kOutermost;
    if (inner || outer) result.push_back(encode_frame(frames[i]));
  }
  return result;
}

}  // namespace

std::string encode(const HostQuestion& question) {
  Array ranks;
  for (const int rank : question.ranks) ranks.emplace_back(rank);
  return msgpack::encode(Map{{"kind", static_cast<int>(question.kind)},
                             {"job", question.job},
                             {"activity", question.activity},
                             {"ranks", std::move(ranks)},
                             {"patience_ms", static_cast<std::int64_t>(question.patience.count())}});
}

HostQuestion decode_question(std::string_view bytes) {
  constexpr std::int64_t kMostPatience = 2'000;
  const Value value = msgpack::decode(bytes);
  HostQuestion question;
  question.kind = static_cast<HostQuestion::Kind>(
      value.at("kind").as_int(0, static_cast<int>(HostQuestion::Kind::ranks)));
  question.job = value.at("job").as_string();
  question.activity = value.at("activity").as_bool();
  for (const Value& rank : value.at("ranks").as_array())
    question.ranks.push_back(static_cast<int>(rank.as_int(0, kMostRank)));
  question.patience = std::chrono::milliseconds(value.at("patience_ms").as_int(0, kMostPatience));
  return question;
}

std::string encode(const ObservedProcess& process, std::int64_t now_ns) {
  return msgpack::encode(Map{{"pid", static_cast<std::int64_t>(process.pid)},
                             {"parent", static_cast<std::int64_t>(process.parent)},
                             {"activity", static_cast<int>(process.activity)},
                             {"copy", Binary{encode_copy(process.snapshot, now_ns)}}});
}

ObservedProcess decode_process(std::string_view bytes, std::int64_t now_ns) {
  const Value value = msgpack::decode(bytes);
  ObservedProcess process;
  process.pid = static_cast<pid_t>(value.at("pid").as_int(0, kMostRank));
  process.parent = static_cast<pid_t>(value.at("parent").as_int(0, kMostRank));
  process.activity = static_cast<Activity>(value.at("activity").as_int(0, static_cast<int>(Activity::gone)));
  process.snapshot = decode_copy(value.at("copy").as_binary(), now_ns);
  process.far = true;
  return process;
}

std::string encode_stacks(int rank, const Stacks& stacks) {
  Array threads;
  for (std::size_t i = 0; i < std::min(stacks.threads.size(), kMostThreads); ++i) {
    threads.push_back(
        Map{{"thread", stacks.threads[i].thread}, {"frames", encode_frames(stacks.threads[i].frames)}});
  }
  return msgpack::encode(Map{{"rank", rank},
                             {"threads", std::move(threads)},
                             {"main_known", stacks.main_known},
                             {"waits", stacks.waits},
                             {"lock_held", stacks.lock_held}});
}

std::pair<int, Stacks> decode_stacks(std::string_view bytes) {
  const Value value = msgpack::decode(bytes);
  Stacks stacks;
  for (const Value& thread : value.at("threads").as_array()) {
    ThreadStack& stack = stacks.threads.emplace_back();
    stack.thread = thread.at("thread").as_uint();
    for (const Value& frame : thread.at("frames").as_array()) stack.frames.push_back(decode_frame(frame));
  }
  stacks.main_known = value.at("main_known").as_bool();
  stacks.waits = value.at("waits").as_bool();
  stacks.lock_held = value.at("lock_held").as_bool();
  return {static_cast<int>(value.at("rank").as_int(0, kMostRank)), std::move(stacks)};
}

std::vector<std::string> encode(const std::vector<AnsweringRank>& ranks) {
  std::vector<std::string> parts;
  for (std::size_t first = 0; first < ranks.size(); first += kMostRanksInPart) {
    Array part;
    for (std::size_t i = first; i < std::min(first + kMostRanksInPart, ranks.size()); ++i) {
      const AnsweringRank& rank = ranks[i];
      part.push_back(Map{{"rank", rank.rank},
                         {"host", rank.host},
                         {"endpoint", rank.endpoint},
                         {"key", rank.key},
                         {"token", rank.token}});
    }
    parts.push_back(msgpack::encode(part));
  }
  return parts;
}

void decode_answering_ranks(std::string_view bytes, std::vector<AnsweringRank>& ranks) {
  const Value part = msgpack::decode(bytes);
  for (const Value& value : part.as_array()) {
    ranks.push_back({static_cast<int>(value.at("rank").as_int(0, kMostRank)), value.at("host").as_string(),
                     value.at("endpoint").as_string(), value.at("key").as_string(),
                     value.at("token").as_string()});
  }
}

}  // namespace vccl
