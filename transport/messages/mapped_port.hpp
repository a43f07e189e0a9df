// Messages to and from the ranks of this host, including this rank itself, through channels in shared memory.
//
// A short message goes into the channel's ring while the receiver has room for its bytes. Any other message
// is offered in the ring. If an offered message lies in a mapped region, the receiver copies it from the
// sender's memory to its own. Otherwise the sender sends it block by block through the channel's slots when
// the receiver asks for it. Both ends know in which order the messages were asked for and how long they are,
// so blocks have no headers. A receiver that cannot map a region that was added later asks for the message in
// the same way.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "transport/host/operation_start.hpp"
#include "transport/messages/message_port.hpp"
#include "transport/messages/message_regions.hpp"

namespace vccl {

class MappedPort final : public MessagePort {
 public:
  MappedPort(const Group& group, const FailureChannel& failures, const AddedRegions& added);

  void start(std::function<void()>) override {}
  void send(int to, const Envelope& envelope, std::span<const std::byte> bytes) override;
  void take(int source, std::uint64_t id, std::span<std::byte> memory) override;
  void matched(int source, std::size_t payload) override { peer_of(source).in.free(payload); }
  void watch(int rank) override { peer_of(rank).watched = true; }
  bool progress(MessageSink& sink) override;
  /// Does nothing: the peers read the group's failure record and this rank's state.
  void stop() noexcept override {}

 private:
  enum class End { none, left, dead };
  struct Outgoing {
    Packet packet;
    std::span<const std::byte> bytes;
  };
  /// A long message on its way, in either direction.
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
    bool lost = false;              // the peer's end was reported to the engine
    std::deque<Outgoing> answers;   // packets of kind want and done, which overtake messages
    std::deque<Outgoing> messages;  // messages that there was no room to announce yet
    std::unordered_map<std::uint64_t, Outgoing> offered;  // this rank's long messages, until they are taken
    std::unordered_map<std::uint64_t, Packet> offers;     // the peer's long messages, until they are taken
    PeerRegions regions;                                  // the regions that the peer has added
    std::uint32_t unmapped = 0;    // bits: regions that this rank has added and the peer cannot map
    std::deque<Transfer> copies;   // of the peer's messages, straight from where they lie
    std::deque<Transfer> filling;  // from the slots, in the order of this rank's `want` packets
    std::deque<Transfer> feeding;  // to the slots, in the order of the peer's `want` packets
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
  bool give_back(std::size_t index, const MessageSink& sink);
  bool flush(std::size_t index, MessageSink& sink);
  bool push_message(std::size_t index, Outgoing& next);
  /// Returns the length of a transfer's next block, limited by what this call may still copy, and counts it
  /// as moved.
  std::size_t advance(Transfer& transfer, std::size_t limit);
  /// Copies the next block to where the transfer goes.
  void move(Transfer& transfer, const std::byte* from, std::size_t limit);
  void place(std::size_t index, Packet& packet, std::span<const std::byte> bytes) const;
  bool holds(std::size_t index, const Packet& packet);
  const std::byte* place_of(std::size_t index, const Packet& packet);
  [[noreturn]] void refuse(std::size_t index, const std::string& what) const;

  const Group& group_;
  const FailureChannel& failures_;
  const AddedRegions& added_;                 // what this rank has added
  std::vector<std::unique_ptr<Peer>> peers_;  // by index in the host
  std::unordered_map<int, std::size_t> index_of_;
  std::size_t budget_ = 0;  // bytes that this progress() may still copy
  std::size_t first_ = 0;
  Clock::time_point next_look_{};
  bool look_ = false;
};

}  // namespace vccl
