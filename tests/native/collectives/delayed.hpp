// A communicator with random delays before and after whatever an algorithm asks of it.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "transport/communicator.hpp"

namespace vccl {

/// Makes random delays, another sequence for each seed. In some operations a rank has none, in others it is
/// slow in every step, so that neighbours run ahead as far as they ever can.
class Delays {
 public:
  explicit Delays(std::uint64_t seed) : random_(seed) {}

  /// Chooses how slow the rank is in the operation that begins.
  void change_pace() {
    constexpr unsigned kSleeps[] = {0, 1, 1, 2, 8};
    sleeps_ = kSleeps[random_() % std::size(kSleeps)];
  }
  void operator()() {
    const auto random = random_();
    if (random % 16 < sleeps_)
      usleep(1 + random / 16 % 300);
    else if (random / 16 % 8 == 0)
      sched_yield();
  }

  /// Delays before something, and after it, unless it throws.
  template <class Step>
  auto around(Step step) {
    (*this)();
    if constexpr (std::is_void_v<decltype(step())>) {
      step();
      (*this)();
    } else {
      auto result = step();
      (*this)();
      return result;
    }
  }

 private:
  std::mt19937_64 random_;
  unsigned sleeps_ = 1;  // of 16 times
};

class DelayedOutbox final : public Outbox {
 public:
  DelayedOutbox(Outbox& inner, Delays& delays) : inner_(inner), delays_(delays) {}
  void post(std::size_t offset, std::size_t bytes) override {
    delays_.around([&] { inner_.post(offset, bytes); });
  }
  std::byte* reserve() override {
    return delays_.around([&] { return inner_.reserve(); });
  }
  void commit(std::size_t bytes) override {
    delays_.around([&] { inner_.commit(bytes); });
  }
  void drain() override {
    delays_.around([&] { inner_.drain(); });
  }

 private:
  Outbox& inner_;
  Delays& delays_;
};

class DelayedInbox final : public Inbox {
 public:
  DelayedInbox(Inbox& inner, Delays& delays) : inner_(inner), delays_(delays) {}
  const std::byte* take(std::size_t offset, std::size_t bytes) override {
    return delays_.around([&] { return inner_.take(offset, bytes); });
  }
  const std::byte* take_committed(std::size_t bytes) override {
    return delays_.around([&] { return inner_.take_committed(bytes); });
  }
  void release() override {
    delays_.around([&] { inner_.release(); });
  }

 private:
  Inbox& inner_;
  Delays& delays_;
};

class DelayedPeers final : public Peers {
 public:
  DelayedPeers(Peers& inner, Delays& delays) : inner_(inner), delays_(delays) {}
  std::span<const int> ranks() const override { return inner_.ranks(); }
  int own() const override { return inner_.own(); }
  bool mappable() const override { return inner_.mappable(); }
  bool all_mapped() override {
    return delays_.around([&] { return inner_.all_mapped(); });
  }
  std::span<std::byte> input(int peer) override { return inner_.input(peer); }
  std::span<std::byte> output(int peer) override { return inner_.output(peer); }
  std::uint64_t factor(int peer) override { return inner_.factor(peer); }
  const std::byte* payload(int peer) override {
    return delays_.around([&] { return inner_.payload(peer); });
  }
  std::byte* scratch(int peer) override {
    return delays_.around([&] { return inner_.scratch(peer); });
  }
  void arrive(std::uint32_t phase) override {
    delays_.around([&] { inner_.arrive(phase); });
  }
  void await(int peer, std::uint32_t phase) override {
    delays_.around([&] { inner_.await(peer, phase); });
  }
  void await_all(std::uint32_t phase) override {
    delays_.around([&] { inner_.await_all(phase); });
  }
  bool declined(int peer) override { return inner_.declined(peer); }
  bool oversubscribed() const override { return inner_.oversubscribed(); }
  int claim_work_item() override {
    return delays_.around([&] { return inner_.claim_work_item(); });
  }
  void deliver_work_item() override {
    delays_.around([&] { inner_.deliver_work_item(); });
  }
  void await_work_items() override {
    delays_.around([&] { inner_.await_work_items(); });
  }

 private:
  Peers& inner_;
  Delays& delays_;
};

class DelayedHostRing final : public HostRing {
 public:
  /// `leaps` is 0 for a rank on no ring, 1 for one on a ring, and that of the HostRing for a leader.
  DelayedHostRing(HostRing& inner, int leaps, Delays& delays) : inner_(inner), delays_(delays) {
    for (int leap = 0; leap < leaps; ++leap) {
      right_.emplace_back(inner.right(leap), delays);
      left_.emplace_back(inner.left(leap), delays);
    }
  }
  int size() const override { return inner_.size(); }
  int position() const override { return inner_.position(); }
  std::span<const int> ranks(int position) const override { return inner_.ranks(position); }
  int rings() const override { return inner_.rings(); }
  bool mappable() const override { return inner_.mappable(); }
  Outbox& right() override { return right(0); }
  Inbox& left() override { return left(0); }
  int leaps() const override { return inner_.leaps(); }
  Outbox& right(int leap) override { return right_[std::size_t(leap)]; }
  Inbox& left(int leap) override { return left_[std::size_t(leap)]; }
  void post(const std::byte* data, std::size_t bytes) override {
    delays_.around([&] { inner_.post(data, bytes); });
  }
  bool all(bool own) override {
    return delays_.around([&] { return inner_.all(own); });
  }

 private:
  HostRing& inner_;
  Delays& delays_;
  std::deque<DelayedOutbox> right_;
  std::deque<DelayedInbox> left_;
};

/// Does everything through `inner`, which has to outlive it. Only the operation's thread is delayed; messages
/// are not.
class DelayedCommunicator final : public Communicator {
 public:
  DelayedCommunicator(Communicator& inner, std::uint64_t seed)
      : inner_(inner),
        delays_(seed * 1009 + std::uint64_t(inner.rank())),
        right_(inner.right(), delays_),
        left_(inner.left(), delays_),
        peers_(inner.host_peers(), delays_) {
    if (HostRing* const hosts = inner.host_ring())
      hosts_.emplace(*hosts, peers_.own() == 0 ? hosts->leaps() : peers_.own() < hosts->rings(), delays_);
  }

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  const std::string& name() const override { return inner_.name(); }
  const RankNames& names() const override { return inner_.names(); }
  const std::string& id() const override { return inner_.id(); }
  int ring_position() const override { return inner_.ring_position(); }
  int ring_rank(int position) const override { return inner_.ring_rank(position); }
  int host_count() const override { return inner_.host_count(); }
  int host_of(int rank) const override { return inner_.host_of(rank); }
  Outbox& right() override { return right_; }
  Inbox& left() override { return left_; }
  Peers* all_peers() override { return inner_.all_peers() ? &peers_ : nullptr; }
  Peers& host_peers() override { return peers_; }
  HostRing* host_ring() override { return hosts_ ? &*hosts_ : nullptr; }
  const std::string& algorithm_choice() const override { return inner_.algorithm_choice(); }
  Messages& messages() override { return inner_.messages(); }
  void add_region(const Region& region) override { inner_.add_region(region); }
  void fail(ErrorCode code, const std::string& what) noexcept override { inner_.fail(code, what); }
  void abort(const std::string& reason) noexcept override { inner_.abort(reason); }
  bool failed() const noexcept override { return inner_.failed(); }
  void check() override { inner_.check(); }
  std::uint64_t sequence() const noexcept override { return inner_.sequence(); }
  bool busy() const noexcept override { return inner_.busy(); }

 private:
  void begin(const Announcement& announcement, const Deadline& deadline) override {
    delays_.change_pace();
    delays_.around([&] { operation_ = std::make_unique<Operation>(inner_, announcement, deadline); });
  }
  void finish() override {
    delays_.around([&] { operation_->finish(); });
    operation_.reset();
  }
  void cut_short() noexcept override { operation_.reset(); }

  Communicator& inner_;
  Delays delays_;
  DelayedOutbox right_;
  DelayedInbox left_;
  DelayedPeers peers_;
  std::optional<DelayedHostRing> hosts_;
  std::unique_ptr<Operation> operation_;  // on `inner_`
};

}  // namespace vccl
