// Messages to and from the ranks of this host, this rank itself among them: channels in shared memory.
//
// Short messages ride in the channel's ring. Long ones are offered there; one in a mapped region is then
// copied by the receiver, from the sender's memory to its own, one elsewhere is sent through the channel's
// slots block by block when the receiver asks for it. Both ends know in which order those were asked for, and
// how long they are, so blocks have no headers. A receiver that cannot map a region that was added later asks
// for the message in the same way.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "transport/gate.hpp"
#include "transport/message_port.hpp"

namespace vccl {

class MappedPort final : public MessagePort {
 public:
  explicit MappedPort(Group& group);

  void start(std::function<void()>) override {}
  void send(int to, const Envelope& envelope, std::span<const std::byte> bytes) override;
  void take(int source, std::uint64_t id, std::span<std::byte> memory) override;
  void watch(int rank) override { peer_of(rank).watched = true; }
  bool progress(MessageSink& sink) override;
  /// The peers see what they have to in the group's failure record and in our state.
  void stop() noexcept override {}

 private:
  enum class End { none, left, dead };
  struct Outgoing {
    Packet packet;
    std::span<const std::byte> bytes;
  };
  /// A long message on its way, ours or theirs.
  struct Transfer {
    std::uint64_t id;
    const std::byte* from;
    std::byte* to;
    std::size_t bytes;
    std::size_t moved = 0;
  };
  struct Peer {
    Peer(MessageChannel to, MessageChannel from) : out(to), in(from) {}

    ChannelWriter out;
    ChannelReader in;
    bool watched = false;
    End end = End::none;
    bool lost = false;                                    // its end was reported
    std::deque<Outgoing> answers;                         // want, done: they overtake messages
    std::deque<Outgoing> messages;                        // of which there was no room to speak yet
    std::unordered_map<std::uint64_t, Outgoing> offered;  // long messages of ours, until they are taken
    std::unordered_map<std::uint64_t, Packet> offers;     // long messages of theirs, until they are taken
    PeerRegions regions;                                  // those they have added
    std::uint32_t unmapped = 0;                           // bits: regions we have added that they cannot map
    std::deque<Transfer> copies;                          // of theirs, straight from where they lie
    std::deque<Transfer> filling;  // of theirs, through the slots, in the order in which we asked for them
    std::deque<Transfer> feeding;  // of ours, the same in reverse
  };

  Peer& peer_of(int rank) { return *peers_[index_of_.at(rank)]; }
  MessageLine& line(std::size_t index) const { return group_.host.messages().line(index); }
  bool progress(std::size_t index, MessageSink& sink);
  End end_of(std::size_t index);
  bool read(std::size_t index, MessageSink& sink);
  void understand(std::size_t index, const ChannelReader::Entry& entry, MessageSink& sink);
  bool copy(std::size_t index, MessageSink& sink);
  bool fill(std::size_t index, MessageSink& sink);
  bool feed(std::size_t index, MessageSink& sink);
  bool flush(std::size_t index, MessageSink& sink);
  /// How long the next piece of a transfer is, within what this call may copy; counts it as moved.
  std::size_t advance(Transfer& transfer, std::size_t limit);
  /// Copies it to where the transfer goes.
  void move(Transfer& transfer, const std::byte* from, std::size_t limit);
  Packet offer_of(std::size_t index, std::span<const std::byte> bytes) const;
  bool holds(std::size_t index, const Packet& packet);
  const std::byte* place_of(std::size_t index, const Packet& packet);
  [[noreturn]] void refuse(std::size_t index, const std::string& what) const;

  Group& group_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by index in the host
  std::unordered_map<int, std::size_t> index_of_;
  std::size_t budget_ = 0;  // bytes that this progress() may still copy
  std::size_t first_ = 0;
  Clock::time_point next_look_{};
  bool look_ = false;
};

}  // namespace vccl
