// What a rank keeps of messages that it has not called receive() for is bounded, and the bounds block nobody.
#include <atomic>
#include <fstream>

#include "tests/native/transport/message_traffic.hpp"
#include "tests/native/transport/zmq_library.hpp"
#include "transport/messages/message_peer.hpp"
#include "transport/shared/message_channel.hpp"

namespace vccl {
namespace {

constexpr std::size_t kBytes = 1024;
constexpr Milliseconds kLong{250'000};    // beyond what anything here may take, a busy machine included
constexpr std::uint64_t kContents = 251;  // different messages, used in turn
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kMany = 40'000;
constexpr bool kMeasured = false;  // the sanitizer's own memory is part of the process's
#else
constexpr std::uint64_t kMany = 200'000;
constexpr bool kMeasured = true;
#endif

std::unique_ptr<Communicator> join(Store& store, int rank, bool two_hosts) {
  find_zmq_for_tests();
  CommunicatorConfig config = test_config(rank, 2);
  if (two_hosts) config.host_id = rank ? "b" : "a";
  return Communicator::create(store, config);
}

/// Bytes of memory that are this process's own, hence without what it shares with its peers.
std::size_t private_memory() {
  std::size_t pages = 0, resident = 0, shared = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident >> shared;
  return (resident - shared) * 4096;
}

/// Messages whose bytes say which one it is, and how many of them have been sent.
class Sender {
 public:
  explicit Sender(Communicator& c) : c_(c), memory_(kContents * kBytes) {
    for (std::uint64_t i = 0; i < kContents; ++i) fill(message(i), i);
  }
  void send(int to, int tag, std::uint64_t number) {
    c_.messages().send(to, tag, {.collective = 9, .count = kBytes}, message(number), Deadline::in(kLong),
                       [this](int, const Error* error) {
                         if (error) failed_ = true;
                         ++done_;
                       });
    ++calls_;
  }
  void wait(std::uint64_t done) const {
    const Deadline deadline = Deadline::in(kLong);
    while (done_ < done) {
      CHECK(!deadline.passed() && !failed_);
      usleep(1000);
    }
  }
  void wait() const { wait(calls_); }
  std::uint64_t done() const { return done_; }

 private:
  std::span<std::byte> message(std::uint64_t number) {
    return {memory_.data() + number % kContents * kBytes, kBytes};
  }

  Communicator& c_;
  std::vector<std::byte> memory_;
  std::uint64_t calls_ = 0;
  std::atomic<std::uint64_t> done_{0};
  std::atomic<bool> failed_{false};
};

/// Many receives at a time, so that a busy machine does not have to switch for each of them. Returns the most
/// of private_memory() on the way.
std::size_t receive_in_order(Communicator& c, int from, int tag, std::uint64_t messages) {
  constexpr std::uint64_t kAtOnce = 1000;
  std::vector<std::byte> memory(kAtOnce * kBytes);
  std::size_t most = 0;
  for (std::uint64_t first = 0; first < messages; first += kAtOnce) {
    most = std::max(most, private_memory());
    std::vector<Outcome> outcomes;
    const auto place = [&](std::uint64_t i) {
      return std::span(memory).subspan((i - first) * kBytes, kBytes);
    };
    const std::uint64_t end = std::min(first + kAtOnce, messages);
    for (std::uint64_t i = first; i < end; ++i) outcomes.push_back(receive(c, from, tag, place(i), kLong));
    for (std::uint64_t i = first; i < end; ++i) {
      outcomes[i - first].get();
      check_content(place(i), i % kContents);
    }
  }
  return most;
}

/// `most`: messages that are done although nobody has received them, out of `messages`.
void send_to_one_that_does_not_receive(bool two_hosts, std::uint64_t messages, std::uint64_t most) {
  FileStore store;
  Processes processes(2, [&](int rank) {
    alarm(250);
    auto c = join(store, rank, two_hosts);
    std::vector<std::byte> token(1);
    if (rank == 0) {
      Sender sender(*c);
      for (std::uint64_t i = 0; i < messages; ++i) sender.send(1, 0, i);
      sender.wait(most);
      usleep(200'000);  // no more of them are done, however long one waits
      CHECK_EQ(sender.done(), most);
      store.set("sent", "1");
      sender.wait();
      receive(*c, 1, 1, token, kLong).get();
    } else {
      // With something under way, here with itself, it takes what comes out of its ring.
      Outcome own = receive(*c, 1, 5, token, kLong);
      const std::size_t before = private_memory();
      store.get("sent", Deadline::in(kLong));
      const std::size_t peak = receive_in_order(*c, 0, 0, messages);
      // The bytes, and about 500 bytes of bookkeeping for each message. Twice that, as the heap keeps pages
      // of what has gone, and how many depends on how the ranks take turns.
      const std::size_t bound = before + 2 * (most * kBytes + kMostUnreceived * 500);
      if (kMeasured && peak > bound)
        throw check::Failure("grew by " + std::to_string(peak - before) + " bytes");
      send(*c, 1, 5, token).get();
      own.get();
      send(*c, 0, 1, token).get();
    }
  });
  processes.check_ends();
}

TEST(a_receiver_that_does_not_receive_on_one_host) {
  send_to_one_that_does_not_receive(false, kMany, MessageChannel::kKeptBytes / kBytes);
}

TEST(a_receiver_that_does_not_receive_on_another_host) {
  send_to_one_that_does_not_receive(true, kMostUnreceived + 5'000, MessagePeer::kShortRoom / kBytes);
}

TEST(a_message_behind_more_than_are_kept) {
  for (const bool two_hosts : {false, true}) {
    MemoryStore store;
    run_threads(2, [&](int rank) {
      auto c = join(store, rank, two_hosts);
      const std::uint64_t messages = two_hosts ? kMostUnreceived + 100 : 2 * kMostUnreceived + 100;
      if (rank == 0) {
        Sender sender(*c);
        for (std::uint64_t i = 0; i < messages; ++i) sender.send(1, 0, i);
        sender.send(1, 7, 0);
        sender.wait();
      } else {
        receive_in_order(*c, kAnySource, 7, 1);
        receive_in_order(*c, 0, 0, messages);
      }
    });
  }
}

TEST(both_send_first) {
  for (const bool two_hosts : {false, true}) {
    MemoryStore store;
    run_threads(2, [&](int rank) {
      auto c = join(store, rank, two_hosts);
      const std::uint64_t messages = kMostUnreceived + 1'000;
      Sender sender(*c);
      for (std::uint64_t i = 0; i < messages; ++i) sender.send(1 - rank, 0, i);
      receive_in_order(*c, 1 - rank, 0, messages);
      sender.wait();
    });
  }
}

TEST(a_rank_sends_itself_more_than_it_keeps) {
  MemoryStore store;
  run_threads(2, [&](int rank) {
    auto c = join(store, rank, false);
    const std::uint64_t messages = kMostUnreceived + 1'000;
    Sender sender(*c);
    for (std::uint64_t i = 0; i < messages; ++i) sender.send(rank, 0, i);
    receive_in_order(*c, rank, 0, messages);
    sender.wait();
  });
}

}  // namespace
}  // namespace vccl

TEST_MAIN
