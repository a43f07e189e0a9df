// The hierarchical collectives that only move: which bytes go where.
#include "csrc_pg/collectives/hierarchical/moves.hpp"

#include "base/text.hpp"
#include "csrc_pg/collectives/buffers/splits.hpp"
#include "csrc_pg/collectives/hierarchical/hierarchical.hpp"

namespace vccl {

void hierarchical_all_gather(Communicator& communicator, const Call& call) {
  HostCall shared(communicator, call);
  const Chunks chunks(call.output_counts, call.count, communicator.size());
  const std::size_t element = shared.element();
  spread(shared, [&](int host) {
    Content content;
    for (const int from : shared.hosts().ranks(host))
      content.add({from, 0, HostMove::kToAll, chunks.begin(from) * element, chunks.count(from) * element});
    return content;
  });
  shared.finish();
}

void hierarchical_broadcast(Communicator& communicator, const Call& call) {
  HostCall shared(communicator, call);
  const int root_host = communicator.host_of(call.root);
  spread(shared, [&](int host) {
    Content content;
    if (host == root_host) content.add({call.root, 0, HostMove::kToAll, 0, call.count * shared.element()});
    return content;
  });
  shared.finish();
}

void hierarchical_gather(Communicator& communicator, const Call& call) {
  HostCall shared(communicator, call);
  const std::size_t chunk = call.count * shared.element();
  const int root_host = communicator.host_of(call.root);
  const auto content = [&](int from_host, int to_host) {
    Content content;
    if (to_host != root_host) return content;
    for (const int from : shared.hosts().ranks(from_host))
      content.add({from, 0, call.root, std::size_t(from) * chunk, chunk});
    return content;
  };
  exchange(shared, content, [&](int from_host, int to_host) {
    return to_host == root_host ? shared.hosts().ranks(from_host).size() * chunk : 0;
  });
  shared.finish();
}

void hierarchical_scatter(Communicator& communicator, const Call& call) {
  HostCall shared(communicator, call);
  const std::size_t chunk = call.count * shared.element();
  const int root_host = communicator.host_of(call.root);
  const auto content = [&](int from_host, int to_host) {
    Content content;
    if (from_host != root_host) return content;
    for (const int to : shared.hosts().ranks(to_host))
      content.add({call.root, std::size_t(to) * chunk, to, 0, chunk});
    return content;
  };
  exchange(shared, content, [&](int from_host, int to_host) {
    return from_host == root_host ? shared.hosts().ranks(to_host).size() * chunk : 0;
  });
  shared.finish();
}

namespace {

/// Throws if a rank of this host announced splits beyond its buffers.
void check_splits(Communicator& communicator, const HostCall& shared, const Splits& splits) {
  for (int peer = 0; peer < shared.ranks(); ++peer) {
    const int rank = shared.peers().ranks()[std::size_t(peer)], last = communicator.size() - 1;
    const std::size_t sent = splits.input_offset(rank, last) + splits.count(rank, last);
    const std::size_t received = splits.output_offset(last, rank) + splits.count(last, rank);
    if (sent * shared.element() == shared.peers().input(peer).size() &&
        received * shared.element() == shared.peers().output(peer).size())
      continue;
    communicator.fail(ErrorCode::protocol, base::text(communicator.names().of_group(rank),
                                                      " announced splits of other lengths than its buffers "
                                                      "for all_to_all"));
    communicator.check();
  }
}

}  // namespace

void hierarchical_all_to_all(Communicator& communicator, const Call& call) {
  HostCall shared(communicator, call);
  const Splits splits(Splits::Announced{}, communicator, call);
  check_splits(communicator, shared, splits);
  const std::size_t element = shared.element();
  const auto each_pair = [&](int from_host, int to_host, auto each) {
    for (const int from : shared.hosts().ranks(from_host))
      for (const int to : shared.hosts().ranks(to_host)) each(from, to, splits.count(from, to) * element);
  };
  const auto content = [&](int from_host, int to_host) {
    Content content;
    each_pair(from_host, to_host, [&](int from, int to, std::size_t bytes) {
      content.add({from, splits.input_offset(from, to) * element, to,
                   splits.output_offset(from, to) * element, bytes});
    });
    return content;
  };
  std::vector<std::size_t> lengths;  // by the hosts that send and receive
  for (int from = 0; from < shared.hosts().size(); ++from)
    for (int to = 0; to < shared.hosts().size(); ++to) {
      lengths.push_back(0);
      each_pair(from, to, [&](int, int, std::size_t bytes) { lengths.back() += bytes; });
    }
  exchange(shared, content, [&](int from_host, int to_host) {
    return lengths[std::size_t(from_host * shared.hosts().size() + to_host)];
  });
  shared.finish();
}

}  // namespace vccl
