// Random programs of streams, events, copies, scratch memory, frees and graphs, compared with a sequential
// reference. Threads share the allocator, and pass blocks on to each other.
//
// VCCL_TEST_SECONDS=600 plays programs for that long, and VCCL_TEST_SEED=N begins with the seed N.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/graph.hpp"
#include "csrc_device/runtime/memory/arena.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "tests/native/check.hpp"

using namespace vdev;

namespace {

using Word = std::uint64_t;
using Random = std::mt19937_64;
using Streams = std::vector<std::shared_ptr<Stream>>;

constexpr std::size_t kSteps = 60, kStreams = 3;
constexpr Word kTorn = 0xbad;

std::size_t pick(Random& random, std::size_t below) {
  return static_cast<std::size_t>(random() % below);
}

Word combine(Word a, Word b) {
  return (a ^ (b << 1)) * 0x9e3779b97f4a7c15ULL + 1;
}

/// A block holds a value, the value plus one, and so on, so that a mixture of two values is seen.
void write(Word* block, std::size_t words, Word value) {
  for (std::size_t i = 0; i < words; ++i) block[i] = value + i;
}

Word read(const Word* block, std::size_t words) {
  for (std::size_t i = 0; i < words; ++i)
    if (block[i] != block[0] + i) return kTorn;
  return block[0];
}

/// One step of a program: makes the value `out` from `a` and `b`, changes `a` by `b`, or frees `a`. Values
/// are numbered; 0 is the input, which is neither changed nor freed.
struct Step {
  enum Kind { kMake, kChange, kFree } kind;
  std::size_t stream, a, b, out;
  std::size_t words, scratch_words;
  Start start;
  bool host_waits;  // for `a` and `b`, in place of the stream; not in a graph
};
using Program = std::vector<Step>;

Program random_program(Random& random) {
  Program program;
  std::vector<std::size_t> alive{0};
  std::size_t values = 1;
  while (program.size() < kSteps) {
    const auto a = pick(random, alive.size()), b = pick(random, alive.size());
    const bool frees = alive.size() > 8 || (alive.size() > 2 && random() % 3 == 0);
    const bool changes = random() % 3 == 0;
    if ((frees || changes) && a == 0) continue;
    const std::size_t words = std::size_t{1} << pick(random, 10);
    program.push_back({frees     ? Step::kFree
                       : changes ? Step::kChange
                                 : Step::kMake,
                       pick(random, kStreams), alive[a], alive[b], values, words,
                       random() % 2 ? words + pick(random, 700) : 0, static_cast<Start>(pick(random, 3)),
                       random() % 8 == 0});
    if (frees) {
      alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(a));
    } else if (!changes) {
      alive.push_back(values++);
    }
  }
  return program;
}

/// Returns what each step makes of the input.
std::vector<Word> reference(const Program& program, Word input) {
  std::vector<Word> values(kSteps + 1), results(kSteps);
  values[0] = input;
  for (std::size_t i = 0; i < program.size(); ++i) {
    const Step& step = program[i];
    if (step.kind == Step::kFree) continue;
    results[i] = combine(values[step.a], values[step.b]);
    values[step.kind == Step::kMake ? step.out : step.a] = results[i];
  }
  return results;
}

/// A block with what its users must wait for.
struct Value {
  Word* block = nullptr;
  std::size_t words = 0;
  Event written;
  std::vector<Event> reads;
};

/// Blocks that one thread leaves to the others.
class Market {
 public:
  struct Offer {
    Value value;
    Word expected;
  };
  void give(Offer offer) {
    std::lock_guard lock(mutex_);
    offers_.push_back(std::move(offer));
  }
  std::optional<Offer> take() {
    std::lock_guard lock(mutex_);
    if (offers_.empty()) return std::nullopt;
    auto offer = std::move(offers_.front());
    offers_.erase(offers_.begin());
    return offer;
  }

 private:
  std::mutex mutex_;
  std::vector<Offer> offers_;
};

/// Plays programs on streams of its own.
class Player {
 public:
  Player(CachingAllocator& allocator, Market& market, Word seed)
      : allocator_(allocator), market_(market), random_(seed), seed_(seed) {
    for (std::size_t i = 0; i < kStreams; ++i)
      streams_.push_back(std::make_shared<Stream>(-1, 1, 0, "random"));
  }

  /// Returns what went wrong, or nothing.
  std::string play_round() {
    const bool captures = random_() % 4 == 0;
    const Program program = random_program(random_);
    std::vector<Word> results(kSteps);
    bool same = captures ? play_graph(program, results) : play_eagerly(program, results);
    if (random_() % 16 == 0) allocator_.empty_cache();
    if (auto offer = market_.take()) same &= use(std::move(*offer));
    ++round_;
    return same ? "" : "seed " + std::to_string(seed_) + ", round " + std::to_string(round_);
  }

 private:
  bool play_eagerly(const Program& program, std::vector<Word>& results) {
    Word input = random_();
    auto left = give(program, &input, results, /*captured=*/false);
    const auto expected = reference(program, input);
    // The order in which the host waits for the streams, and how, decides which thread runs their tasks.
    std::shuffle(streams_.begin(), streams_.end(), random_);
    for (const auto& stream : streams_) {
      switch (random_() % 3) {
        case 0:
          stream->synchronize();
          break;
        case 1:
          stream->record().synchronize();
          break;
        default:
          while (!stream->query()) std::this_thread::yield();
      }
    }
    const bool same = results == expected;
    for (auto& [number, value] : left) allocator_.free(reinterpret_cast<std::byte*>(value.block));
    leave_a_block();
    return same;
  }

  bool play_graph(const Program& program, std::vector<Word>& results) {
    Word input = 0;
    auto capture = Capture::begin(streams_[0], CaptureMode::kRelaxed, new_private_pool());
    for (std::size_t i = 1; i < kStreams; ++i) streams_[i]->wait(streams_[0]->record());
    auto left = give(program, &input, results, /*captured=*/true);
    for (std::size_t i = 1; i < kStreams; ++i) streams_[0]->wait(streams_[i]->record());
    auto graph = capture->end();
    capture.reset();
    bool same = true;
    for (int replay = 0; replay < 3; ++replay) {
      input = random_();
      const auto& stream = streams_[pick(random_, kStreams)];
      graph->replay(*stream, nullptr);
      stream->synchronize();
      same &= results == reference(program, input);
    }
    if (random_() % 2) graph.reset();
    for (auto& [number, value] : left) allocator_.free(reinterpret_cast<std::byte*>(value.block));
    return same;
  }

  /// Gives the program to the streams, and returns the values that it has not freed.
  std::map<std::size_t, Value> give(const Program& program, const Word* input, std::vector<Word>& results,
                                    bool captured) {
    std::map<std::size_t, Value> values;
    values[0] = {const_cast<Word*>(input), 1, Event(), {}};
    for (std::size_t i = 0; i < program.size(); ++i) {
      const Step& step = program[i];
      if (step.kind == Step::kFree) {
        allocator_.free(reinterpret_cast<std::byte*>(values.at(step.a).block));
        values.erase(step.a);
        continue;
      }
      Value &a = values.at(step.a), &b = values.at(step.b);
      const auto& stream = streams_[step.stream];
      const bool host_waits = step.host_waits && !captured;
      for (const Value* value : {&a, &b}) wait(stream, *value, host_waits, value != &values.at(0));
      if (step.kind == Step::kChange)
        for (const Event& event : a.reads) host_waits ? event.wait() : stream->wait(event);
      Value made = a;
      if (step.kind == Step::kMake) {
        made = {reinterpret_cast<Word*>(allocator_.allocate(step.words * sizeof(Word), stream)),
                step.words,
                Event(),
                {}};
      }
      stream->enqueue(task(a, b, made, step.scratch_words, &results[i]), step.start);
      made.written = stream->record();
      made.reads.clear();
      a.reads.push_back(made.written);
      b.reads.push_back(made.written);
      values[step.kind == Step::kMake ? step.out : step.a] = made;
    }
    values.erase(0);
    return values;
  }

  void wait(const std::shared_ptr<Stream>& stream, const Value& value, bool host_waits, bool in_card) {
    host_waits ? value.written.wait() : stream->wait(value.written);
    if (in_card) allocator_.record_stream(reinterpret_cast<std::byte*>(value.block), stream);
  }

  Task task(const Value& a, const Value& b, const Value& out, std::size_t scratch_words, Word* result) {
    return [this, one = a.block, one_words = a.words, other = b.block, other_words = b.words, to = out.block,
            words = out.words, scratch_words, result] {
      Word value = combine(read(one, one_words), read(other, other_words));
      if (scratch_words > 0) {
        auto* scratch = allocator_.allocate(scratch_words * sizeof(Word), Queue::running(), kScratchPool);
        write(reinterpret_cast<Word*>(scratch), scratch_words, value);
        std::this_thread::yield();
        value = read(reinterpret_cast<Word*>(scratch), scratch_words);
        allocator_.free(scratch);
      }
      write(to, words, value);
      *result = value;
    };
  }

  /// Leaves a block to another thread, which has to wait for its writer.
  void leave_a_block() {
    const auto& stream = streams_[0];
    const Word value = random_();
    const std::size_t words = 1 + pick(random_, 500);
    auto* block = reinterpret_cast<Word*>(allocator_.allocate(words * sizeof(Word), stream));
    stream->enqueue([=] { write(block, words, value); }, static_cast<Start>(pick(random_, 3)));
    market_.give({{block, words, stream->record(), {}}, value});
  }

  bool use(Market::Offer offer) {
    const auto& stream = streams_[pick(random_, kStreams)];
    const Value& value = offer.value;
    wait(stream, value, random_() % 4 == 0, true);
    Word seen = 0;
    stream->enqueue([&] { seen = read(value.block, value.words); });
    allocator_.free(reinterpret_cast<std::byte*>(value.block));
    stream->synchronize();
    return seen == offer.expected;
  }

  CachingAllocator& allocator_;
  Market& market_;
  Random random_;
  const Word seed_;
  Streams streams_;
  int round_ = 0;
};

Word number_of(const char* name) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : 0;
}

}  // namespace

TEST(random_programs_give_what_the_reference_gives) {
  constexpr int kThreads = 3, kRounds = 200;
  const Word first = number_of("VCCL_TEST_SEED");
  const auto seconds = std::chrono::seconds(number_of("VCCL_TEST_SECONDS"));
  const auto end = std::chrono::steady_clock::now() + seconds;
  std::atomic<int> rounds{0};
  std::mutex mutex;
  std::string wrong;
  for (Word seed = first; seed == first || (wrong.empty() && std::chrono::steady_clock::now() < end);
       ++seed) {
    Arena arena("random", std::size_t{256} << 20);
    CachingAllocator allocator(arena, 0);
    Market market;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        Player player(allocator, market, seed * kThreads + static_cast<Word>(t));
        for (int round = 0; round < kRounds; ++round, ++rounds) {
          auto text = player.play_round();
          std::lock_guard lock(mutex);
          if (wrong.empty()) wrong = std::move(text);
          if (!wrong.empty()) return;
        }
      });
    }
    for (auto& thread : threads) thread.join();
    while (auto offer = market.take()) {
      offer->value.written.wait();
      allocator.free(reinterpret_cast<std::byte*>(offer->value.block));
    }
    if (wrong.empty()) CHECK_EQ(allocator.stats().allocated_bytes.current, std::int64_t{0});
  }
  if (seconds.count() > 0)
    std::printf("%d programs from seed %llu on\n", rounds.load(), static_cast<unsigned long long>(first));
  CHECK_EQ(wrong, std::string());
}

TEST_MAIN
