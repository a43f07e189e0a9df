// The cards of this process, and which card and stream the calling thread uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc_device/runtime/arena.hpp"
#include "csrc_device/runtime/caching_allocator.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/stream.hpp"

namespace vdev {

/// What torch.vdev.get_device_properties shows.
struct CardProperties {
  std::string name;               // "vccl virtual card"
  std::size_t total_memory = 0;   // bytes
  int multi_processor_count = 0;  // cores this process may use
  int physical_index = 0;         // the number before VDEV_VISIBLE_DEVICES
};

/// One card: its memory, its allocator, its streams. Made at first use, never destroyed before exit.
class Card {
 public:
  int index() const;
  const CardProperties& properties() const;
  Arena& arena();
  CachingAllocator& allocator();

  /// Stream 0.
  std::shared_ptr<Stream> default_stream();
  /// A stream of the pool (32 a priority, handed out in turn, like CUDA's). priority 0 or -1 (high).
  std::shared_ptr<Stream> pool_stream(int priority);
  /// A stream that is nobody else's; it leaves the card's table when the last pointer goes.
  std::shared_ptr<Stream> new_stream(int priority, std::string name);
  /// Throws InvalidArgument for an id this card does not have.
  std::shared_ptr<Stream> stream(std::int64_t id);
  /// Every stream of the card, drained; then raises the first error found, once.
  void synchronize();

 private:
  friend class Cards;
  struct Impl;
  explicit Card(std::unique_ptr<Impl> impl);
  ~Card();
  std::unique_ptr<Impl> impl_;
};

/// Number of visible cards; never throws and touches nothing (VDEV_DEVICE_COUNT, VDEV_VISIBLE_DEVICES).
int card_count() noexcept;
/// The card, made if this is its first use. Throws InvalidArgument for a bad index, BadFork in a forked child
/// of a process that had used a card.
Card& card(int index);
/// Whether any card was made in this process (is_initialized), and whether one particular was.
bool any_card_used() noexcept;
bool card_used(int index) noexcept;
/// In a child of fork() whose parent had used a card.
bool in_bad_fork() noexcept;
/// The card whose arena holds `p`, or -1. Makes nothing.
int card_of(const void* p) noexcept;

/// The calling thread's card; 0 at first. Setting does not make the card.
int current_card() noexcept;
/// Throws InvalidArgument. Returns the previous one.
int set_current_card(int index);
/// The calling thread's current stream on `card`; its default stream at first.
std::shared_ptr<Stream> current_stream(int card);
/// Makes `id` the calling thread's current stream on `card` and returns the previous id.
std::int64_t set_current_stream(int card, std::int64_t id);
/// The id alone: makes no card.
std::int64_t current_stream_id(int card) noexcept;

/// Drops every queue and stops every worker, within a bounded time; for the interpreter's exit.
void shutdown() noexcept;

}  // namespace vdev
