// The cards of this process, and which card and stream the calling thread uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc_device/runtime/allocator/caching_allocator.hpp"
#include "csrc_device/runtime/cards/profile.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/memory/arena.hpp"
#include "csrc_device/runtime/memory/card_users.hpp"
#include "csrc_device/runtime/stream.hpp"

namespace vdev {

/// Holds the figures that torch.vdev.get_device_properties shows.
struct CardProperties {
  std::string name;                  // "vccl virtual card", or the profile's
  std::size_t total_memory = 0;      // bytes
  int multi_processor_count = 0;     // cores this process may use, or the profile's
  const Profile* profile = nullptr;  // VDEV_PROFILE, or null
  int physical_index = 0;            // the card's number without VDEV_VISIBLE_DEVICES
};

/// Says how a drain treats a stream that is captured.
enum class Captured : std::uint8_t { refuses, is_left_out };

/// Represents one card: its memory, its allocator and its streams. A card is made at its first use and not
/// destroyed before the process exits.
class Card {
 public:
  int index() const;
  const CardProperties& properties() const;
  Arena& arena();
  CachingAllocator& allocator();
  /// Returns the processes that have memory of the physical card.
  std::vector<CardUser> users() const;

  /// Returns stream 0.
  std::shared_ptr<Stream> default_stream();
  /// Returns a stream of the pool. As on CUDA, the pool has 32 streams of each priority, which are handed out
  /// in turn. `priority` is 0 or -1 (high). Sets `made` to whether the stream is new, if that is asked.
  std::shared_ptr<Stream> pool_stream(int priority, bool* made = nullptr);
  /// Returns a new stream that nobody else has. The stream leaves the card's table when the last pointer to
  /// it goes.
  std::shared_ptr<Stream> new_stream(int priority, std::string name);
  /// Returns the stream `id`. Throws InvalidArgument if the card does not have it.
  std::shared_ptr<Stream> stream(std::int64_t id);
  /// Returns the stream at that address. Throws InvalidArgument if no stream of the card is there.
  std::shared_ptr<Stream> stream_at(std::uintptr_t address);
  /// Drains the card's streams, those of high priority first, and raises the first failure that stands. Then
  /// waits for the points of also_wait_for(), and raises again what has failed.
  void synchronize();
  /// Lets synchronize() wait for a point that no stream has, such as the end of a message, and raise the
  /// failure behind it.
  void also_wait_for(const Event& point);
  /// Drains the default stream and the pool's (in the same order), to which a program gives its work, and
  /// raises nothing. Streams of new_stream() go on: their tasks, such as collectives, may wait for something
  /// that the caller is about to do, and the program's own streams hold its waits for them. A stream that is
  /// captured refuses, or is left out.
  void drain_program_streams(Captured captured = Captured::refuses);
  /// Drains the same streams, and raises what Stream::synchronize_before_reading() raises. Call this when the
  /// caller then asks spoiled_memory() about memory that tasks of any of them may have written.
  void synchronize_before_reading();

 private:
  friend class Cards;
  struct Impl;
  explicit Card(std::unique_ptr<Impl> impl);
  ~Card();
  std::unique_ptr<Impl> impl_;
};

/// Returns the number of visible cards (VDEV_DEVICE_COUNT, VDEV_VISIBLE_DEVICES). Never throws, and makes no
/// card.
int card_count() noexcept;
/// Makes this process see no card from now on, whatever the variables say. Call this when the rest of vccl,
/// which torch needs for the cards, could not be loaded.
void hide_cards() noexcept;
/// Throws InvalidArgument if no visible card has this index.
void check_card(int index);
/// Returns the card, and makes it at its first use. Throws InvalidArgument for a bad index, and BadFork in a
/// forked child of a process that had used a card.
Card& card(int index);
/// any_card_used() returns whether this process has made any card (is_initialized), card_used() whether it
/// has made this card.
bool any_card_used() noexcept;
bool card_used(int index) noexcept;
/// Returns true in a child of fork() whose parent had used a card.
bool in_bad_fork() noexcept;
/// Returns the card whose arena holds `p`, or -1. Makes no card.
int card_of(const void* p) noexcept;

/// Returns the calling thread's card, which is 0 at first.
int current_card() noexcept;
/// Sets the calling thread's card, without making the card, and returns the previous one. Throws
/// InvalidArgument if `index` is no visible card's.
int set_current_card(int index);
/// Returns the calling thread's current stream on `card`, which is the default stream at first.
std::shared_ptr<Stream> current_stream(int card);
/// Makes `id` the calling thread's current stream on `card` and returns the previous id.
std::int64_t set_current_stream(int card, std::int64_t id);
/// Returns the id of the calling thread's current stream on `card`. Makes no card.
std::int64_t current_stream_id(int card) noexcept;

/// Returns why this process does not share the capacity of its cards with others, or an empty text if it
/// does. Known from the first allocation on.
std::string sharing_problem();

/// Tells how many threads a task computes with, which is 1 at first. Where there are fewer cores than tasks,
/// streams of high priority go first (stream.hpp).
void set_kernel_threads(int threads);

/// Call this when the interpreter exits. Drops the tasks that every queue holds, and stops every worker
/// within a bounded time.
void shutdown() noexcept;

}  // namespace vdev
