#include "transport/state/ring_order.hpp"

namespace vccl {

RingOrder::RingOrder(std::vector<std::vector<int>> hosts, int rank) : hosts_(std::move(hosts)) {
  for (const auto& ranks : hosts_) ranks_.insert(ranks_.end(), ranks.begin(), ranks.end());
  host_of_.resize(ranks_.size());
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    for (int other : hosts_[host]) host_of_.at(static_cast<std::size_t>(other)) = static_cast<int>(host);
  }
  while (rank_at(position_) != rank) ++position_;
}

}  // namespace vccl
