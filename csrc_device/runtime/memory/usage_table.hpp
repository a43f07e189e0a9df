// What the processes of a user have reserved of each card's memory, in a file that all of them map.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/runtime/memory/card_users.hpp"

namespace vdev {

/// Names the set of cards that a process uses. Processes with the same set share each card of it.
struct CardSet {
  std::uint64_t host = 0;    // a hash of Environment::host_id
  std::size_t capacity = 0;  // of each card, in bytes, for all processes together
};

/// Is this process's view of the table. Thread-safe.
///
/// Every process has an entry, and holds a file lock (fcntl) on the byte of the file whose number is the
/// entry's. The system takes the lock away when the process ends, however it ends, and neither a child of
/// fork() nor a program that is started with exec() inherits it. So an entry whose byte can be locked belongs
/// to nobody, and what it says is forgotten. The file is in /dev/shm, which a reboot empties.
///
/// If the table cannot be used, each process counts only what it reserves itself.
class UsageTable {
 public:
  /// Opens the file, or makes it. Never throws for what the system refuses: see problem().
  UsageTable(std::string path, CardSet cards);
  ~UsageTable();
  UsageTable(const UsageTable&) = delete;
  UsageTable& operator=(const UsageTable&) = delete;

  // `card` is the number of a physical card.

  /// Notes `bytes` more for this process and returns true, unless the processes that share the card would
  /// have more than its capacity then.
  bool reserve(int card, std::size_t bytes);
  /// Notes that this process has returned `bytes` of the card's memory.
  void give_back(int card, std::size_t bytes);
  /// Returns the processes that have memory of the card, in the order of their entries.
  std::vector<CardUser> users(int card);
  /// Returns the bytes that all processes together have of the card.
  std::size_t reserved(int card);
  /// Returns why processes do not share their cards' memory, or an empty text if they do.
  std::string problem();
  /// Gives the entry up, and removes the file if no other process uses it. Call this when the process is
  /// about to end.
  void leave() noexcept;

 private:
  struct Content;
  struct Entry;
  class Locked;

  bool ready();
  void open();
  void close() noexcept;
  bool enter();
  bool lock(std::size_t byte, int type) const noexcept;
  std::size_t sum(int card) const;
  void forget_the_dead();

  const std::string path_;
  const CardSet cards_;
  std::mutex mutex_;  // guards everything below, and this process's locks on the file
  int fd_ = -1;
  Content* content_ = nullptr;
  Entry* own_ = nullptr;
  std::size_t slot_ = 0;
  std::string problem_;
  // What the own entry is to say. It is written from here, so that a lost entry can be written again.
  std::array<std::uint64_t, kMostCards> mine_{};
};

/// Returns the table of this process, which its first call opens. Its file belongs to the user.
UsageTable& usage_table();
/// Does what UsageTable::leave() does, if this process has opened its table.
void leave_usage_table() noexcept;

/// Is what this process reserves of one card. An account without a card is for memory that is no card's:
/// everything is granted, and nobody shares it. Thread-safe.
class CardAccount {
 public:
  CardAccount() = default;
  explicit CardAccount(int physical_card) : card_(physical_card) {}

  bool reserve(std::size_t bytes);
  void give_back(std::size_t bytes);
  /// Returns the bytes that the card has left for all processes.
  std::size_t left() const;
  std::vector<CardUser> users() const;

 private:
  int card_ = -1;
};

}  // namespace vdev
