// Messages to and from ranks on other hosts.
//
// Every rank has one door, a router that any rank may connect to; where it is and the token that opens it,
// all ranks learn when the group is made. The first of two ranks that has to speak to the other, or to watch
// it, connects to its door, and both use that connection. Should both do so at the same time, there are two
// connections, and each rank goes on speaking on its own. So what one rank says to another always goes one
// way.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "transport/message_peer.hpp"
#include "transport/message_watch.hpp"
#include "transport/store.hpp"

namespace vccl {

class MessageLinks final : public MessagePort {
 public:
  /// Listens at `address` and learns where the ranks of other hosts do. Every rank of the group makes one, at
  /// the same time; throws Error(timeout | protocol | system) by the group's deadline.
  MessageLinks(const Group& group, Store& store, const std::string& address);
  /// stop(), where that was not called: a rank that never used its messages leaves like any other.
  ~MessageLinks() override;
  /// Removes what everybody has read from the store.
  static void clean(Store& store);

  void start(std::function<void()> notify) override;
  void send(int to, const Envelope& envelope, std::span<const std::byte> bytes) override;
  void take(int source, std::uint64_t id, std::span<std::byte> memory) override;
  void watch(int rank) override { links_.at(static_cast<std::size_t>(rank))->needed = true; }
  bool progress(MessageSink& sink) override;
  void stop() noexcept override;

 private:
  struct Link {
    Link(const Group& group, int peer_rank) : rank(peer_rank), peer(group, peer_rank) {}

    const int rank;
    std::string endpoint, key, token;  // of its door
    MessagePeer peer;
    bool needed = false;             // somebody sends to it, or waits for it
    std::unique_ptr<ZmqSocket> own;  // our connection to its door
    bool own_ready = false;          // there may be something to read from it
    bool own_ends = false;           // it has ended; what came before may not have been read
    bool own_over = false;           // it has been read to its end
    Clock::time_point own_end{};     // when that was
    std::string route;               // its connection to our door
    bool route_ends = false;         // as above
    bool route_over = false;
    bool suspect = false;   // that connection may have ended: no ping since then has been answered
    int pings = 0;          // since the last answer
    int pongs_due = 0;      // pings that it has yet to answer
    int earlier_pongs = 0;  // of these, to pings from before the suspicion: they say nothing about it
    bool left = false;      // it said so
    bool told = false;      // of the group's failure, or that came from there
    bool lost = false;      // its end was reported
  };

  void publish(Store& store, const std::string& address);
  void learn(Store& store);
  void connect(Link& link);
  void disconnect(Link& link, Milliseconds linger) noexcept;
  std::optional<MessagePath> path_to(Link& link);
  void flush(Link& link);

  void read_door(MessageSink& sink);
  void greet(const ZmqSocket::Received& received);
  void suspect(Link& link);
  bool probe();
  bool suspicious() const;
  bool expects_last_words() const;
  void read_own(Link& link, MessageSink& sink);
  void understand(Link& link, ZmqSocket::Received received, MessageSink& sink);
  void report_ends(MessageSink& sink);
  std::string end_text(const Link& link) const;

  void deliver_rest();
  void say_failure(Link& link);
  void say_left(Link& link);

  const Group& group_;
  const pid_t owner_;
  std::string token_;
  std::unique_ptr<ZmqSocket> door_;
  std::vector<std::unique_ptr<Link>> links_;     // by rank; none for those of this host
  std::unordered_map<std::string, int> routes_;  // the ranks that connected to the door
  std::unique_ptr<DescriptorWatch> watch_;
  std::vector<std::uint64_t> copied_;  // short messages of ours whose memory is free, not yet reported
  std::vector<std::shared_ptr<Borrowed>> lent_;
  bool door_ready_ = false;
  std::size_t read_ = 0;  // bytes, by the progress() under way
  bool moved_ = false;
  Clock::time_point next_probe_{};
  bool warned_ = false;
  bool stopped_ = false;
};

}  // namespace vccl
