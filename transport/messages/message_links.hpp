// Messages to and from ranks on other hosts.
//
// Every rank has one listener: a router to which any rank may connect. When the communicator is made, all
// ranks learn each listener's endpoint, the token that it accepts, and how its rank protects blocks. When one
// rank first has to send to another, or to watch it, it connects to that rank's listener. Both ranks then use
// that connection. If two ranks connect to each other at the same time, there are two connections, and each
// rank sends on the connection that it made. So everything that one rank sends to another goes one way.
//
// The first hello of a connection has {session}: 16 random bytes. A connection that is cut is made again by
// the rank that had made it, with a new socket and hello {again, session, attempt, heard}. The attempts of a
// connection have ascending numbers. The other rank answers with hello {again, attempt, heard}. Then a rank
// that sends there repeats what the other rank has not heard (journal.hpp).
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/fork.hpp"
#include "transport/bootstrap/meeting.hpp"
#include "transport/connections/peer_connection.hpp"
#include "transport/connections/resumption.hpp"
#include "transport/messages/descriptor_watch.hpp"
#include "transport/messages/message_peer.hpp"

namespace vccl {

class MessageLinks final : public MessagePort {
 public:
  /// Listens, and learns the listeners of the ranks on other hosts. Every rank of the group must
  /// construct one at the same time. Throws Error(protocol | system | invalid), and what Meeting::await()
  /// throws.
  /// `answers` is where this rank answers questions, if it does.
  MessageLinks(const Group& group, const FailureChannel& failures, Meeting& meeting,
               const LinkSettings& settings, const std::optional<ListenerRecord>& answers = {});
  /// Returns where the ranks on other hosts answer questions, by rank, for those that do.
  const std::map<int, ListenerRecord>& answerers() const { return answerers_; }
  /// Returns the names of the other ranks' hosts, by rank.
  std::map<int, std::string> host_names() const;
  /// Calls stop() if that was not called: a rank that never used its messages leaves like any other.
  ~MessageLinks() override;
  /// Removes from the store what every rank has read.
  static void clean(Store& store);

  void start(std::function<void()> notify) override;
  void send(int to, const Envelope& envelope, std::span<const std::byte> bytes) override;
  void take(int source, std::uint64_t id, std::span<std::byte> memory) override;
  void matched(int source, std::size_t payload) override;
  void watch(int rank) override { links_.at(static_cast<std::size_t>(rank))->needed = true; }
  bool progress(MessageSink& sink) override;
  void stop() noexcept override;

 private:
  using State = PeerConnection::State;

  /// Its socket is this rank's connection to the peer's listener, once there is one.
  struct Link : PeerConnection {
    Link(const Group& group, const FailureChannel& failures, const LinkSettings& link_settings, int peer_rank)
        : PeerConnection(group, failures, link_settings, peer_rank), peer(group, peer_rank, link_settings) {}

    MessagePeer peer;
    bool needed = false;        // this rank sends to the peer, or waits for it
    bool socket_ready = false;  // there may be something to read from the socket
    bool stream_ready = false;  // or from the peer's stream, or about this rank's
    std::size_t watched = 0;    // how many descriptors of streams are watched
    std::string route;          // the peer's connection to this rank's listener
    ConnectionEnd route_end;    // of that connection
    bool suspect = false;   // that connection may have ended: no ping since the suspicion has been answered
    int pings = 0;          // how many pings were sent since the last answer
    int pongs_due = 0;      // how many pings the peer has yet to answer
    int earlier_pongs = 0;  // of these, to pings from before the suspicion; they prove nothing
    // What is said of the connection of this rank to the peer's listener is said of the peer's too.
    std::string session, their_session;            // what only the two ranks know
    std::optional<Resumption> again, awaited;      // while the connection is made again
    std::uint64_t attempt = 0, their_attempt = 0;  // the number of the last attempt
  };

  /// Publishes where this rank listens, and learns where the others do.
  void meet(Meeting& meeting, const LinkSettings& settings, const std::optional<ListenerRecord>& answers);
  void connect(Link& link);
  void disconnect(Link& link, Milliseconds linger = ClosedSockets::kLinger) noexcept;
  void watch_streams(Link& link);
  void read_stream(Link& link, MessageSink& sink);
  void close_streams(Link& link, Milliseconds linger = ClosedSockets::kLinger) noexcept;
  std::optional<MessagePath> path_to(Link& link);
  void flush(Link& link);

  bool make_again(Link& link);
  static bool was_cut(const Link& link);
  void give_up(Link& link, std::optional<Milliseconds> tried);
  void redial(Link& link);
  void hear_answer(Link& link, const ZmqSocket::Received& received);
  bool may_come_again(const Link& link) const;
  static std::string session_of(const msgpack::Value& hello);
  bool is_next_hello(const Link& link, const msgpack::Value& hello) const;
  void welcome(Link& link, const msgpack::Value& hello, const std::string& route);
  void bind(Link& link, const std::string& route);
  void await_peer(Link& link);
  void await_peers();
  bool makes_again() const;
  void rejoin_stream(Link& link);

  void read_listener(MessageSink& sink);
  void greet(const ZmqSocket::Received& received);
  void suspect(Link& link);
  bool probe();
  bool suspicious() const;
  bool expects_last_words() const;
  bool connecting();
  void read_socket(Link& link, MessageSink& sink);
  void understand(Link& link, ZmqSocket::Received received, MessageSink& sink);
  void read(Link& link, ZmqSocket::Received& received, MessageSink& sink);
  void report_ends(MessageSink& sink);

  void deliver_rest();
  void say_last(Link& link, bool failed);
  void await_last_words();

  const Group& group_;
  const FailureChannel& failures_;
  const base::ProcessMark made_;
  std::unique_ptr<ZmqSocket> listener_;
  ListenerRecord listens_;                    // at listener_
  std::vector<std::unique_ptr<Link>> links_;  // by rank; null for the ranks of this host
  std::map<int, ListenerRecord> answerers_;
  std::unordered_map<std::string, int> routes_;  // the rank at each route of the listener; -1 for old ones
  std::unique_ptr<DescriptorWatch> watch_;
  ClosedSockets closed_;
  bool listener_ready_ = false;
  std::size_t read_ = 0;  // bytes that the progress() under way has read
  bool moved_ = false;
  Clock::time_point next_probe_{};
  RateLimit strangers_;
  bool stopped_ = false;
};

}  // namespace vccl
