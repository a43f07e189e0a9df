#include "csrc_pg/collectives/run.hpp"

#include <algorithm>

#include "csrc_pg/collectives/buffers/payloads.hpp"
#include "csrc_pg/collectives/direct/direct_call.hpp"
#include "csrc_pg/collectives/selector.hpp"
#include "transport/block_hook.hpp"

namespace vccl {

namespace {

/// Returns over which links an algorithm goes where there are several hosts.
Route route_of(const Algorithm& algorithm) {
  if (algorithm.reach == Reach::across) return Route::host_rings;
  if (algorithm.reach != Reach::announced) return Route::ring;
  return has_root(algorithm.collective) ? Route::some_leaps : Route::leaps;
}

/// Returns which ranks have to take part before this rank can be done with the call. What has no elements, or
/// other sizes from each rank, may need fewer.
Needs needs_of(const Call& call, const Signature& signature, int rank) {
  if (call.collective == Collective::barrier) return Needs::all;
  if (signature.count == 0 || signature.extra != 0) return Needs::unknown;
  switch (call.collective) {
    case Collective::all_reduce:
    case Collective::all_gather:
    case Collective::reduce_scatter:
      return Needs::all;
    case Collective::broadcast:
    case Collective::scatter:
      return rank != signature.root ? Needs::root : Needs::unknown;
    case Collective::reduce:
    case Collective::gather:
      return rank == signature.root ? Needs::all : Needs::unknown;
    default:
      return Needs::unknown;
  }
}

Announcement announcement_of(const Communicator& communicator, const Call& call, const Choice& choice) {
  const int rank = communicator.rank(), size = communicator.size();
  Announcement announcement{.signature = signature_of(call), .window = window_of(call, rank, size)};
  announcement.algorithm = choice.number();
  announcement.order = call.order;
  if (const auto& refused = call.refused)
    announcement.refusal = Refusal{{refused->element, refused->count, refused->number, refused->calls}};
  announcement.payload_bytes = choice.payload.bytes;
  std::copy(std::begin(choice.payload.data), std::end(choice.payload.data), announcement.payload);
  announcement.route = route_of(*choice.first);
  announcement.needs = needs_of(call, announcement.signature, rank);
  if (!needs_mapping(choice.first->reach)) return announcement;
  const Buffers buffers = buffers_of(call, rank, size);
  const std::size_t element = size_of(call.dtype);
  announcement.shows = true;
  // Peers read what is shown as input. They write to an input only where it is also shown as output.
  announcement.input = {static_cast<std::byte*>(const_cast<void*>(call.input)), buffers.input * element};
  announcement.output = {static_cast<std::byte*>(call.output), buffers.output * element};
  announcement.factor = factor_bits(call);
  return announcement;
}

/// Returns whether all hosts say yes. All ranks of a host must say the same.
bool all_hosts(Peers& peers, HostRing& hosts, bool own) {
  constexpr int kLeader = 0;
  if (peers.own() == kLeader) {
    own = hosts.all(own);
  } else {
    peers.await(kLeader, HostPhases::kAgreed);
    own = !peers.declined(kLeader);
  }
  peers.arrive(own ? HostPhases::kAgreed : Peers::kDeclined);
  return own;
}

/// Returns whether the first algorithm of the choice can do the call. All ranks come to the same answer.
bool can_do_first(Communicator& communicator, const Choice& choice) {
  if (!needs_mapping(choice.first->reach)) return true;
  Peers& peers = communicator.host_peers();
  const bool mapped = peers.all_mapped();
  return choice.first->reach == Reach::across ? all_hosts(peers, *communicator.host_ring(), mapped) : mapped;
}

}  // namespace

void run(Communicator& communicator, const Call& call, const Deadline& deadline) {
  check_call(communicator, call);
  const Choice choice = choose_algorithms(communicator, call);
  Operation operation(communicator, announcement_of(communicator, call, choice), deadline);
  (can_do_first(communicator, choice) ? choice.first : choice.otherwise)->run(communicator, call);
  block_moved();  // at the latest: what rides in the announcement moves no block of its own
  operation.finish();
}

}  // namespace vccl
