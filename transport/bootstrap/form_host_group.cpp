#include "transport/bootstrap/form_host_group.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "base/periods.hpp"
#include "base/text.hpp"
#include "transport/bootstrap/door.hpp"
#include "transport/bootstrap/hand_over.hpp"
#include "transport/support/error_text.hpp"
#include "transport/support/protocol.hpp"
#include "transport/system/machine.hpp"

namespace vccl {
namespace {

using msgpack::Array;
using msgpack::Value;

std::string reach_key(int rank) {
  return base::text("reach/", rank);
}

/// What both sides of the hand-over have in common.
class HandOver {
 public:
  HandOver(Store& store, const RankNames& names, std::vector<RankRecord> candidates, int rank,
           std::span<const Region> regions, const Deadline& deadline, const std::function<void()>& look)
      : store_(store),
        names_(names),
        candidates_(std::move(candidates)),
        rank_(rank),
        regions_(regions),
        deadline_(deadline),
        look_(look) {}

 protected:
  const RankRecord& record(int rank) const;
  const RankRecord& own_record() const { return record(rank_); }
  /// Maps the regions that a rank handed over, and appends the rank to the host group.
  void add_rank(int rank, const Handles& handles);
  std::vector<std::shared_ptr<Mapping>> map_regions(int rank, const Handles& handles) const;
  /// Returns the earlier one of the deadline and `length` from now.
  Deadline within(Milliseconds length) const;

  Store& store_;
  const RankNames& names_;
  std::vector<RankRecord> candidates_;
  int rank_;
  std::span<const Region> regions_;
  const Deadline& deadline_;
  const std::function<void()>& look_;
  HostGroup group_;
};

Deadline HandOver::within(Milliseconds length) const {
  const Deadline slice = Deadline::in(length);
  return slice.at < deadline_.at ? slice : deadline_;
}

const RankRecord& HandOver::record(int rank) const {
  const auto found = std::find_if(candidates_.begin(), candidates_.end(),
                                  [&](const RankRecord& candidate) { return candidate.rank == rank; });
  if (found == candidates_.end()) {
    throw Error(ErrorCode::protocol, base::text(names_.rank(rank), " turned up on a host it is not on"));
  }
  return *found;
}

// A communicator of cards has one region for each rank, the arena of that rank's card; one of the CPU has the
// arena of shared host memory, if it is used (csrc_pg/communicators/communicators.cpp). A region is a memfd,
// which came through Leader::hand_out(). map_shared_memory() refuses a file whose kind, seals or length is
// not what was announced, maps the whole file as shared memory, and keeps one mapping for the process. From
// then on, what lies at an offset of the peer's card lies at the same offset of the mapping here.
std::vector<std::shared_ptr<Mapping>> HandOver::map_regions(int rank, const Handles& handles) const {
  std::vector<std::shared_ptr<Mapping>> regions;
  try {
    for (std::size_t i = 0; i < handles.regions.size(); ++i) {
      regions.push_back(map_shared_memory(handles.regions[i].get(), handles.bytes[i]));
    }
  } catch (const Error& error) {
    throw Error(error.code(), base::text(names_.rank(rank_), " cannot use region ", regions.size(), " of ",
                                         names_.rank(rank), ": ", error.what()));
  }
  return regions;
}

void HandOver::add_rank(int rank, const Handles& handles) {
  std::vector<std::shared_ptr<Mapping>> regions;
  if (rank == rank_) {
    for (const Region& region : regions_) {
      regions.push_back(adopt_shared_memory(region.fd, region.base, region.size, region.owner));
    }
    group_.index = static_cast<int>(group_.ranks.size());
  } else {
    regions = map_regions(rank, handles);
  }
  const RankRecord& them = record(rank);
  const bool visible = own_record().pid_space == them.pid_space;
  const bool same_process = visible && own_record().pid == them.pid;
  group_.ranks.emplace_back(rank);
  group_.regions.push_back(std::move(regions));
  if (same_process) {
    group_.processes.emplace_back();
  } else {
    FileDescriptor own(handles.pidfd ? fcntl(handles.pidfd.get(), F_DUPFD_CLOEXEC, 0) : -1);
    group_.processes.emplace_back(std::move(own), static_cast<pid_t>(them.pid), visible);
  }
}

/// The lowest rank of the host, which leads the hand-over.
class Leader : HandOver {
 public:
  using HandOver::HandOver;
  HostGroup form(Listener* listener);

 private:
  void make_control();
  void receive_members(Listener& listener);
  bool reached(int rank);
  bool hear(Guest& guest);
  bool greet(Guest& guest);
  void admit(Guest& guest);
  bool awaits(int rank);
  void hand_out();
  void tell_members(const std::string& why) noexcept;

  FileDescriptor control_;
  std::string nonce_;
  std::optional<Door> door_;  // if other ranks may come
  std::map<int, Channel> members_;
  std::map<int, Handles> handles_;
};

HostGroup Leader::form(Listener* listener) {
  make_control();
  try {
    if (candidates_.size() > 1) receive_members(*listener);
    handles_[rank_].pidfd = open_pidfd(getpid());
    add_rank(rank_, handles_[rank_]);
    for (const auto& [rank, channel] : members_) add_rank(rank, handles_[rank]);
    hand_out();
  } catch (const Error& error) {
    tell_members(error.what());
    throw;
  }
  return std::move(group_);
}

void Leader::make_control() {
  group_.layout_ranks = static_cast<int>(candidates_.size());
  control_ = make_shared_memory("vccl-control", ControlLayout(group_.layout_ranks).bytes());
  group_.control = map_shared_memory(control_.get(), ControlLayout(group_.layout_ranks).bytes());
  nonce_ = random_bytes(ControlHeader::kNonceBytes);
  ControlHeader* header = ControlLayout::header(group_.control->base());
  header->magic = ControlHeader::kMagic;
  std::memcpy(header->nonce, nonce_.data(), nonce_.size());
}

void Leader::receive_members(Listener& listener) {
  door_.emplace(listener, candidates_.size(), [this](Guest& guest) { return hear(guest); });
  std::map<int, PeerProcess> expected;
  for (const RankRecord& candidate : candidates_) {
    if (candidate.rank == rank_ || !reached(candidate.rank)) continue;
    expected.emplace(candidate.rank, process_of(candidate, own_record()));
  }
  const auto is_missing = [&](const auto& entry) { return !members_.contains(entry.first); };
  while (std::ranges::any_of(expected, is_missing)) {
    door_->attend(within(base::kMeetingPeriod));
    look_();
    const auto missing = std::ranges::find_if(expected, is_missing);
    if (missing == expected.end()) break;
    for (const auto& [rank, process] : expected) {
      if (!members_.contains(rank) && process.dead()) throw died(record(rank), own_record(), names_);
    }
    if (!deadline_.passed()) continue;
    throw Error(ErrorCode::timeout,
                base::text(names_.rank(missing->first), " did not take the shared memory that ",
                           names_.rank(rank_), " offered it", door_->complaint(names_.rank(rank_))));
  }
  std::erase_if(members_, [&](const auto& entry) { return !expected.contains(entry.first); });
}

/// Blocks until `rank` has published whether it could connect to this rank, and returns the answer.
bool Leader::reached(int rank) {
  const PeerProcess process = process_of(record(rank), own_record());
  while (true) {
    const Milliseconds patience = door_->attend(Deadline::in(Milliseconds(0)));
    // This is read before the store: what a rank has set before it died is then found in the store.
    const bool dead = process.dead();
    try {
      const std::string answer = store_.get(reach_key(rank), within(dead ? Milliseconds(0) : patience));
      store_.remove(reach_key(rank));
      return read_record(answer, rank, names_).at("ok").as_bool();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timeout) throw;
    }
    look_();
    if (dead) throw died(record(rank), own_record(), names_);
    if (!deadline_.passed()) continue;
    throw Error(ErrorCode::timeout,
                base::text(names_.rank(rank_), " waited ", duration_text(deadline_.length), " for ",
                           names_.rank(rank), " to say whether it can share memory with it",
                           door_->complaint(names_.rank(rank_))));
  }
}

/// Receives a guest's packet, and answers it. Returns false if the guest is none any more, because it is a
/// member now or no rank that this one waits for.
bool Leader::hear(Guest& guest) {
  const bool known = guest.rank >= 0;
  if (!known && !greet(guest)) return false;
  try {
    if (known) {
      admit(guest);
      return false;
    }
    const int control = control_.get();
    guest.channel.send(control_message("control", {{"ranks", group_.layout_ranks}}), {&control, 1},
                       deadline_);
    return true;
  } catch (const Error& error) {
    throw Error(error.code(), base::text(names_.rank(guest.rank), " failed to take the shared memory of ",
                                         names_.rank(rank_), ": ", error.what()));
  }
}

/// Receives which rank a guest is. Returns whether this rank waits for that one.
bool Leader::greet(Guest& guest) {
  try {
    Channel::Packet hello = guest.channel.receive(Deadline::in(Milliseconds(0)));
    const Value message = read_packet(hello, "hello");
    const auto rank = static_cast<int>(message.at("rank").as_int(0, INT32_MAX));
    Handles handles;
    handles.bytes = read_sizes(message);
    handles.regions = std::move(hello.descriptors);
    if (!awaits(rank) || handles.regions.size() != handles.bytes.size()) return false;
    handles_[rank] = std::move(handles);
    guest.rank = rank;
    return true;
  } catch (const Error&) {
    return false;  // a stranger of the same user; the expected ranks are still to come
  }
}

bool Leader::awaits(int rank) {
  const auto is_it = [rank](const auto& one) { return one.rank == rank; };
  return rank != rank_ && !members_.contains(rank) && std::ranges::any_of(candidates_, is_it) &&
         std::ranges::none_of(door_->guests(), is_it);
}

/// Checks a guest's proof that the control memory is mapped. The guest is then a member.
void Leader::admit(Guest& guest) {
  const Value proof = read_packet(guest.channel.receive(deadline_), "proof");
  if (proof.at("nonce").as_binary() != nonce_) {
    throw Error(ErrorCode::protocol, "it returned another nonce than the one in the shared memory");
  }
  handles_[guest.rank].pidfd = guest.channel.peer_pidfd();
  members_.emplace(guest.rank, std::move(guest.channel));
}

void Leader::hand_out() {
  Array ranks;
  HandOverPackets packets;
  for (int rank : group_.ranks) {
    ranks.emplace_back(rank);
    const Handles& handles = handles_[rank];
    std::vector<int> descriptors;
    Array bytes(handles.bytes.begin(), handles.bytes.end());
    if (rank == rank_) {
      for (const Region& region : regions_) descriptors.push_back(region.fd);
      bytes = sizes_of(regions_);
    }
    for (const FileDescriptor& fd : handles.regions) descriptors.push_back(fd.get());
    packets.add(rank, std::move(bytes), std::move(descriptors), handles.pidfd ? handles.pidfd.get() : -1);
  }
  for (auto& [member, channel] : members_) {
    channel.send(control_message("group", {{"ranks", ranks}}), {}, deadline_);
    packets.send(channel, deadline_);
  }
}

void Leader::tell_members(const std::string& why) noexcept {
  const auto tell = [&](Channel& channel) {
    try {
      channel.send(control_message("failed", {{"why", std::string(cut_text(why, 2000))}}), {},
                   Deadline::in(Milliseconds(100)));
    } catch (const std::exception&) {
      // That member has gone as well.
    }
  };
  for (auto& [rank, channel] : members_) tell(channel);
  if (!door_) return;
  for (Guest& guest : door_->guests()) {
    if (guest.rank >= 0) tell(guest.channel);
  }
}

/// Every rank of the host but the leader.
class Member : HandOver {
 public:
  using HandOver::HandOver;
  /// Returns nothing if the leader cannot be reached. This rank is then a host of its own.
  std::optional<HostGroup> form();

 private:
  std::optional<Channel> reach();
  void map_control(Channel& channel);
  void receive_ranks(Channel& channel);
};

std::optional<HostGroup> Member::form() {
  std::optional<Channel> channel = reach();
  if (!channel) return std::nullopt;
  try {
    map_control(*channel);
    receive_ranks(*channel);
  } catch (const Error& error) {
    throw Error(error.code(), base::text("the hand-over of shared memory by ",
                                         names_.rank(candidates_.front().rank), " failed: ", error.what()));
  }
  return std::move(group_);
}

std::optional<Channel> Member::reach() {
  const RankRecord& leader = candidates_.front();
  const PeerProcess process = process_of(leader, own_record());
  std::optional<Channel> channel;
  std::string why;
  while (!channel && why.empty()) {
    try {
      channel = Channel::connect(leader.socket, within(base::kMeetingPeriod));
    } catch (const Error& error) {
      if (process.dead()) throw died(leader, own_record(), names_);
      if (error.code() == ErrorCode::aborted) throw;
      if (error.code() != ErrorCode::timeout) {
        why = error.what();
        continue;
      }
      look_();
      if (deadline_.passed()) {
        throw Error(
            ErrorCode::timeout,
            base::text(names_.rank(rank_), " could not connect to ", names_.rank(leader.rank),
                       " within the timeout of ", duration_text(deadline_.length), ", because the door of ",
                       names_.rank(leader.rank), " was full of other connections"));
      }
    }
  }
  // The leader waits only for the ranks that could connect.
  store_.set(reach_key(rank_), encode_record({{"ok", channel.has_value()}, {"why", why}}));
  return channel;
}

void Member::map_control(Channel& channel) {
  std::vector<int> descriptors;
  for (const Region& region : regions_) descriptors.push_back(region.fd);
  channel.send(control_message("hello", {{"rank", rank_}, {"bytes", sizes_of(regions_)}}), descriptors,
               deadline_);

  const Channel::Packet reply = channel.receive(deadline_);
  group_.layout_ranks =
      static_cast<int>(read_packet(reply, "control").at("ranks").as_int(2, candidates_.size()));
  if (reply.descriptors.size() != 1) throw Error(ErrorCode::protocol, "no control memory came");
  group_.control = map_shared_memory(reply.descriptors[0].get(), ControlLayout(group_.layout_ranks).bytes());
  const ControlHeader* header = ControlLayout::header(group_.control->base());
  if (header->magic != ControlHeader::kMagic) {
    throw Error(ErrorCode::protocol,
                "the control memory has another layout: the ranks run different versions");
  }
  msgpack::Binary nonce{std::string(header->nonce, ControlHeader::kNonceBytes)};
  channel.send(control_message("proof", {{"nonce", nonce}}), {}, deadline_);
}

void Member::receive_ranks(Channel& channel) {
  const Value group = read_packet(channel.receive(deadline_), "group");
  const Array& announced = group.at("ranks").as_array();
  while (group_.ranks.size() < announced.size()) {
    const std::size_t before = group_.ranks.size();
    read_hand_over(channel.receive(deadline_), [&](int rank, Handles handles) {
      const std::size_t place = group_.ranks.size();
      const bool ascending = place == 0 || rank > group_.ranks.back();
      if (place == announced.size() || announced[place] != Value(rank) || !ascending)
        throw Error(ErrorCode::protocol, "a packet of the hand-over does not fit what was announced");
      add_rank(rank, handles);
    });
    if (group_.ranks.size() == before)
      throw Error(ErrorCode::protocol, "a packet of the hand-over has no ranks");
  }
  if (std::find(group_.ranks.begin(), group_.ranks.end(), rank_) == group_.ranks.end() ||
      static_cast<int>(group_.ranks.size()) > group_.layout_ranks) {
    throw Error(ErrorCode::protocol, "the host's ranks were announced without this one");
  }
}

}  // namespace

HostGroup form_host_group(Store& store, const RankNames& names, const std::vector<RankRecord>& candidates,
                          int rank, std::span<const Region> regions, Listener& listener,
                          const Deadline& deadline, const std::function<void()>& look) {
  if (candidates.front().rank == rank) {
    return Leader(store, names, candidates, rank, regions, deadline, look).form(&listener);
  }
  if (auto group = Member(store, names, candidates, rank, regions, deadline, look).form())
    return std::move(*group);
  const auto own = std::find_if(candidates.begin(), candidates.end(),
                                [&](const RankRecord& candidate) { return candidate.rank == rank; });
  return Leader(store, names, {*own}, rank, regions, deadline, look).form(nullptr);
}

}  // namespace vccl
