// A ring of threads in one address space that watches how an algorithm uses it.
//
// It moves blocks as mapped memory does (nothing is copied on posting), with the same few slots, and holds
// the algorithm to the contract of transport/communicator.hpp: every block is taken with the offset and
// length it was posted with, lies in the window, fits a slot, is released before the next one is taken, and
// is unchanged from its posting to its release. A mistake that gives a wrong number now and then on a real
// transport is an error here every time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/communicator.hpp"

namespace strict {

using namespace vccl;

class Ring;

class Member : public Communicator, private Outbox, private Inbox {
 public:
  Member(Ring& ring, int rank) : ring_(ring), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override;
  const std::string& name() const override { return name_; }
  const RankNames& names() const override { return names_; }
  const std::string& id() const override { return name_; }
  int ring_position() const override;
  int ring_rank(int position) const override;
  int host_count() const override { return size(); }  // so that a barrier has to move its token
  int host_of(int rank) const override { return rank; }
  Outbox& right() override { return *this; }
  Inbox& left() override { return *this; }
  void fail(ErrorCode code, const std::string& what) noexcept override;
  void abort(const std::string& reason) noexcept override { fail(ErrorCode::aborted, reason); }
  bool failed() const noexcept override;
  void check() override;
  std::uint64_t sequence() const noexcept override { return sequence_; }
  bool busy() const noexcept override { return false; }

 private:
  friend class Ring;
  struct Block {
    bool in_window;
    std::size_t offset, bytes;
    const std::byte* data;
    std::vector<std::byte> copy;  // as posted
  };

  void begin(const Announcement& announcement, const Deadline& deadline) override;
  void finish() override { drain(); }
  void cut_short() noexcept override { fail(ErrorCode::aborted, "an operation was cut short"); }
  void post(std::size_t offset, std::size_t bytes) override;
  std::byte* reserve() override;
  void commit(std::size_t bytes) override;
  void drain() override;
  const std::byte* take(std::size_t offset, std::size_t bytes) override { return take(true, offset, bytes); }
  const std::byte* take_committed(std::size_t bytes) override { return take(false, 0, bytes); }
  void release() override;
  const std::byte* take(bool in_window, std::size_t offset, std::size_t bytes);
  template <class Ready>
  void wait(std::unique_lock<std::mutex>& lock, const char* what, Ready ready);

  Ring& ring_;
  const int rank_;
  const std::string name_ = "strict";
  const RankNames names_{name_, {}};
  std::uint64_t sequence_ = 0;
  std::span<std::byte> window_;
  // The blocks that the left neighbour sent. While `taken_`, the first one is the block that was taken.
  std::deque<Block> inbound_;
  bool taken_ = false;
  bool reserved_ = false;
  std::size_t sent_ = 0;
  std::vector<std::byte> slots_ = std::vector<std::byte>(kBlockBytes * kSlots);
};

class Ring {
 public:
  /// Position p of the ring is rank (p * stride) % size.
  Ring(int size, int stride) : stride_(stride) {
    for (int rank = 0; rank < size; ++rank) members_.push_back(std::make_unique<Member>(*this, rank));
  }
  Member& operator[](int rank) { return *members_[std::size_t(rank)]; }

 private:
  friend class Member;
  std::vector<std::unique_ptr<Member>> members_;
  const int stride_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string failure_;
  ErrorCode code_ = ErrorCode::aborted;
};

inline int Member::size() const {
  return int(ring_.members_.size());
}
inline int Member::ring_rank(int position) const {
  return position * ring_.stride_ % size();
}
inline int Member::ring_position() const {
  int position = 0;
  while (ring_rank(position) != rank_) ++position;
  return position;
}

inline void Member::fail(ErrorCode code, const std::string& what) noexcept {
  const std::lock_guard lock(ring_.mutex_);
  if (ring_.failure_.empty()) ring_.failure_ = what, ring_.code_ = code;
  ring_.changed_.notify_all();
}

inline bool Member::failed() const noexcept {
  const std::lock_guard lock(ring_.mutex_);
  return !ring_.failure_.empty();
}

inline void Member::check() {
  const std::lock_guard lock(ring_.mutex_);
  if (!ring_.failure_.empty()) throw Error(ring_.code_, ring_.failure_);
}

template <class Ready>
void Member::wait(std::unique_lock<std::mutex>& lock, const char* what, Ready ready) {
  // This waits by the system's clock, since this compiler's thread sanitizer does not know the monotonic
  // wait.
  const auto limit = std::chrono::system_clock::now() + std::chrono::seconds(300);
  const bool done =
      ring_.changed_.wait_until(lock, limit, [&] { return ready() || !ring_.failure_.empty(); });
  if (!ring_.failure_.empty()) throw Error(ring_.code_, ring_.failure_);
  if (!done) throw Error(ErrorCode::timeout, "rank " + std::to_string(rank_) + " waits for ever in " + what);
}

inline void Member::begin(const Announcement& announcement, const Deadline&) {
  check();
  const std::lock_guard lock(ring_.mutex_);
  window_ = announcement.window;
  ++sequence_;
}

inline void Member::post(std::size_t offset, std::size_t bytes) {
  if (reserved_) throw Error(ErrorCode::protocol, "post between reserve and commit");
  if (bytes == 0 || bytes > kBlockBytes)
    throw Error(ErrorCode::protocol, "post of " + std::to_string(bytes) + " bytes");
  if (offset + bytes > window_.size()) throw Error(ErrorCode::protocol, "post beyond the window");
  auto& to = ring_[ring_rank((ring_position() + 1) % size())];
  std::unique_lock lock(ring_.mutex_);
  wait(lock, "post", [&] { return to.inbound_.size() < kSlots; });
  const std::byte* data = window_.data() + offset;
  to.inbound_.push_back({true, offset, bytes, data, {data, data + bytes}});
  ++sent_;
  ring_.changed_.notify_all();
}

inline std::byte* Member::reserve() {
  if (reserved_) throw Error(ErrorCode::protocol, "reserve after reserve");
  reserved_ = true;
  auto& to = ring_[ring_rank((ring_position() + 1) % size())];
  std::unique_lock lock(ring_.mutex_);
  wait(lock, "reserve", [&] { return to.inbound_.size() < kSlots; });
  return slots_.data() + sent_ % kSlots * kBlockBytes;
}

inline void Member::commit(std::size_t bytes) {
  if (!reserved_) throw Error(ErrorCode::protocol, "commit without reserve");
  if (bytes == 0 || bytes > kBlockBytes)
    throw Error(ErrorCode::protocol, "commit of " + std::to_string(bytes) + " bytes");
  reserved_ = false;
  auto& to = ring_[ring_rank((ring_position() + 1) % size())];
  const std::lock_guard lock(ring_.mutex_);
  const std::byte* data = slots_.data() + sent_ % kSlots * kBlockBytes;
  to.inbound_.push_back({false, 0, bytes, data, {data, data + bytes}});
  ++sent_;
  ring_.changed_.notify_all();
}

inline void Member::drain() {
  if (size() == 1) return;
  auto& to = ring_[ring_rank((ring_position() + 1) % size())];
  std::unique_lock lock(ring_.mutex_);
  wait(lock, "drain", [&] { return to.inbound_.empty(); });
}

inline const std::byte* Member::take(bool in_window, std::size_t offset, std::size_t bytes) {
  if (taken_) throw Error(ErrorCode::protocol, "take without release");
  std::unique_lock lock(ring_.mutex_);
  wait(lock, "take", [&] { return !inbound_.empty(); });
  const auto& block = inbound_.front();
  if (block.in_window != in_window || block.offset != offset || block.bytes != bytes)
    throw Error(ErrorCode::protocol, "took another block than was posted");
  taken_ = true;
  return block.data;
}

inline void Member::release() {
  if (!taken_) throw Error(ErrorCode::protocol, "release without take");
  const std::lock_guard lock(ring_.mutex_);
  const auto& block = inbound_.front();
  if (std::memcmp(block.data, block.copy.data(), block.bytes) != 0)
    throw Error(ErrorCode::protocol, "a block changed between its posting and its release");
  taken_ = false;
  inbound_.pop_front();
  ring_.changed_.notify_all();
}

}  // namespace strict
