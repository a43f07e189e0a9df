// A struct in shared memory that threads of one process change, and that any process may read meanwhile.
#pragma once

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace vccl::records {

/// Holds a Content whose readers take no lock and see no half of a change.
///
/// The version is odd during a change, and grows with each. A writer makes it odd by a compare-and-swap with
/// acquire, so that one thread at a time is in a change and sees the changes before. It then stores the words
/// with release, and at the end the next even version with release. A reader loads the version with acquire,
/// the words with acquire, and the version again. If it has read a word of a later change, that word's store
/// comes after the odd version, which the second load therefore finds. So equal even versions mean that all
/// words belong to that version. A process that was killed in a change leaves an odd version for good.
template <class Content>
class Versioned {
  static_assert(std::is_trivially_copyable_v<Content> && sizeof(Content) % sizeof(std::uint64_t) == 0);

 public:
  using Word = std::uint64_t;
  static constexpr std::size_t kWords = sizeof(Content) / sizeof(Word);

  /// Begins a change, and returns the version before it, which end_change() needs. A thread that is in a
  /// change makes only some stores, so waiting for it is short.
  std::uint64_t begin_change() noexcept {
    constexpr int kLooks = 100;
    for (int looks = 0;; ++looks) {
      auto version = version_.load(std::memory_order_relaxed);
      if (version % 2 == 0 && version_.compare_exchange_weak(version, version + 1, std::memory_order_acquire,
                                                             std::memory_order_relaxed))
        return version;
      if (looks > kLooks) ::sched_yield();
    }
  }
  void end_change(std::uint64_t before) noexcept { version_.store(before + 2, std::memory_order_release); }
  /// Ends a change in which nothing was stored.
  void cancel_change(std::uint64_t before) noexcept { version_.store(before, std::memory_order_release); }

  /// Stores the first `bytes` bytes of the content; the others stay as they were. Call this in a change.
  void store(const Content& content, std::size_t bytes = sizeof(Content)) noexcept {
    const auto* from = reinterpret_cast<const std::byte*>(&content);
    for (std::size_t i = 0; i * sizeof(std::uint64_t) < bytes; ++i) {
      std::uint64_t word;
      std::memcpy(&word, from + i * sizeof word, sizeof word);
      words_[i].store(word, std::memory_order_release);
    }
  }
  /// Reads and stores a member of the content, at its offset. Call these in a change.
  template <class Value>
  Value get(std::size_t offset) const noexcept {
    const auto word = words_[offset / sizeof(Word)].load(std::memory_order_relaxed);
    Value value;
    std::memcpy(&value, reinterpret_cast<const std::byte*>(&word) + offset % sizeof(Word), sizeof value);
    return value;
  }
  template <class Value>
  void put(std::size_t offset, Value value) noexcept {
    auto& stored = words_[offset / sizeof(Word)];
    auto word = stored.load(std::memory_order_relaxed);
    std::memcpy(reinterpret_cast<std::byte*>(&word) + offset % sizeof(Word), &value, sizeof value);
    stored.store(word, std::memory_order_release);
  }
  void write(const Content& content, std::size_t bytes = sizeof(Content)) noexcept {
    const auto before = begin_change();
    store(content, bytes);
    end_change(before);
  }

  /// What a reader has found.
  enum class Found {
    nothing,  // nothing was ever written
    content,
    torn,  // the content was changing whenever this looked, or its process died in a change; it is empty
  };
  /// Copies the content. Looks a bounded number of times, whatever the writer does.
  Found read(Content& content) const noexcept {
    return read(content, sizeof(Content), [](const Content&) { return sizeof(Content); });
  }
  /// Copies only the first bytes, and leaves the others as they are. Their number is what `used` says of a
  /// content whose first `head` bytes are there, and at least `head`.
  template <class Used>
  Found read(Content& content, std::size_t head, Used used) const noexcept {
    constexpr int kLooks = 64;
    for (int look = 0; look < kLooks; ++look) {
      const auto version = version_.load(std::memory_order_acquire);
      if (version == 0) return Found::nothing;
      if (version % 2 != 0) {
        if (look > kLooks / 2) ::sched_yield();
        continue;
      }
      load(content, 0, head);
      load(content, head, std::min(used(std::as_const(content)), sizeof(Content)));
      if (version_.load(std::memory_order_relaxed) == version) return Found::content;
    }
    content = Content{};
    return Found::torn;
  }

 private:
  void load(Content& content, std::size_t from, std::size_t end) const noexcept {
    auto* to = reinterpret_cast<std::byte*>(&content);
    for (std::size_t i = from / sizeof(Word); i * sizeof(Word) < end; ++i) {
      const auto word = words_[i].load(std::memory_order_acquire);
      std::memcpy(to + i * sizeof word, &word, sizeof word);
    }
  }

  std::atomic<std::uint64_t> version_;
  std::array<std::atomic<std::uint64_t>, kWords> words_;
};

}  // namespace vccl::records
