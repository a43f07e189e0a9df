// What a process waits for, in memory that the processes it shares a communicator with can read.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace vccl {

/// One operation or meeting that a thread of the process waits in, or messages that wait for one peer, and
/// the processes that have to act.
struct PublishedWait {
  static constexpr std::size_t kMaxAwaited = 8, kMaxText = 200;

  std::uint64_t communicator;  // id_of_communicator()
  std::uint32_t awaited_count;
  std::uint32_t length;
  std::uint64_t any;  // 1: each of the awaited processes can end the wait alone; 0: all have to act
  std::array<std::uint64_t, kMaxAwaited> awaited;  // the awaited processes' tokens (RankLine::process)
  // For a process on another host: the wait is for it only while its PublishedWaits::state has this value.
  // For one on this host: 0.
  std::array<std::uint64_t, kMaxAwaited> states;
  std::array<char, kMaxText> text;  // "all_reduce(...) on cpu, operation 3 of group default_pg"

  std::string to_string() const;
  bool operator==(const PublishedWait&) const = default;
};

/// All waits of a process.
struct PublishedWaits {
  static constexpr std::size_t kMax = 8;

  std::uint32_t count;
  std::uint32_t blocked;  // 1: all waits are listed, and the process cannot go on before one ends
  std::uint64_t rank;     // the process's rank in the job
  // Changes with what the process has begun and sent in groups of several hosts (WaitFacts). Never 0.
  std::uint64_t state;
  std::array<PublishedWait, kMax> waits;

  bool operator==(const PublishedWaits&) const = default;
};

/// PublishedWaits in memory that one process writes and others read. The version is odd during a change, so a
/// reader can tell whether it has read in the midst of a change. The writer stores the words with release,
/// after the odd version. The reader loads them with acquire, before it reads the version again. So a reader
/// that has read a new word also finds a new version.
class WaitRecord {
 public:
  struct Copy {
    std::uint64_t version = 0;  // even; 0: nothing was ever written
    std::uint64_t looks = 0;
    bool concluded = false;
    // The record of a process on another host was read in the round of this number (WaitExchange). 0: it lies
    // in memory of this host, and was read just now.
    std::uint64_t round = 0;
    PublishedWaits waits{};
  };

  void write(std::uint64_t version, const PublishedWaits& waits) noexcept;
  /// Sets how often the process has found that this version still holds. The process increments the number
  /// after each such check.
  void set_looks(std::uint64_t looks) noexcept { looks_.store(looks, std::memory_order_release); }
  void set_concluded(bool concluded) noexcept {
    concluded_.store(concluded ? 1 : 0, std::memory_order_release);
  }
  std::uint64_t version() const noexcept { return version_.load(std::memory_order_relaxed); }
  /// Returns a copy of the record. Its version is 0 if the record is being changed. Counts are within their
  /// bounds, whatever the peer wrote.
  Copy read() const noexcept;

 private:
  static constexpr std::size_t kWords = sizeof(PublishedWaits) / sizeof(std::uint64_t);
  static_assert(sizeof(PublishedWaits) % sizeof(std::uint64_t) == 0);

  std::atomic<std::uint64_t> version_;
  std::atomic<std::uint64_t> looks_;
  std::atomic<std::uint64_t> concluded_;
  std::array<std::atomic<std::uint64_t>, kWords> words_;
};

/// Returns "rank 0: A; rank 1: B", by rank. `records` has an entry for the token of each member.
std::string calls_text(const std::set<std::uint64_t>& members,
                       const std::map<std::uint64_t, WaitRecord::Copy>& records);

}  // namespace vccl
