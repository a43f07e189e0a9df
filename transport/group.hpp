// What the parts of one communicator share: who and where the ranks are, and the operation under way.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "transport/failure.hpp"
#include "transport/host_group.hpp"
#include "transport/log.hpp"
#include "transport/message_regions.hpp"

namespace vccl {

/// This rank's window, and where it lies.
struct Window {
  std::span<std::byte> bytes;
  WindowKind kind = WindowKind::staged;
};

struct Group {
  std::string name;
  int rank = 0;
  int size = 1;
  std::string (*describe)(const Signature&) = nullptr;
  Log log;
  HostGroup host;
  std::vector<Region> regions;  // ours, from the group's making
  AddedRegions added_regions;   // ours, since then; for messages alone
  int cores = 1;                // that the ranks on this host may use
  bool crowded = false;         // they have to take turns on them; the same on each

  // The operation under way; 0 before the first.
  std::atomic<std::uint64_t> sequence{0};
  Signature signature;
  Window window;
  Deadline deadline{};

  // Links to other hosts; empty where there are none.
  std::function<void()> pump;            // receives what has come
  std::function<void()> spread_failure;  // tells the neighbours, from any thread

  Failure failure() const { return Failure(host.failure()); }
  RankLine& own_line() const { return host.line(host.index); }
  /// Wakes the other ranks of this host that sleep.
  void wake_others() const noexcept;
  /// Records a failure for every rank of this host and wakes them. Only the first counts.
  void fail(ErrorCode code, const std::string& what) const noexcept;
  /// Throws the failure if there is one.
  void check() const {
    if (failure().happened()) throw failure().error();
  }
  /// fail(), then throws whichever failure was first.
  [[noreturn]] void raise(ErrorCode code, const std::string& what) const;

  std::string describe_signature(const Signature& signature) const;
  /// "all_reduce(float32, 1024 elements, SUM) (operation 7 of group default_pg)", for messages.
  std::string operation_text() const;
};

/// "1, 2, 5".
std::string numbers_text(std::span<const int> numbers);
/// "rank 3", "ranks 1, 2, 5".
std::string ranks_text(std::span<const int> ranks);
/// "30 s", "1.5 s", "200 ms".
std::string duration_text(Milliseconds length);

}  // namespace vccl
