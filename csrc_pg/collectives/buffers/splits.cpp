#include "csrc_pg/collectives/buffers/splits.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "base/text.hpp"
#include "csrc_pg/collectives/buffers/payloads.hpp"

namespace vccl {

Splits::Splits(Communicator& communicator, const Call& call)
    : size_(communicator.size()), equal_(call.count) {
  if (call.input_counts.empty()) return;
  exchange(communicator, call);
  compare(communicator);
}

Splits::Splits(Announced, Communicator& communicator, const Call& call)
    : size_(communicator.size()), equal_(call.count) {
  if (call.input_counts.empty()) return;
  table_.resize(at(size_, 0));
  const Payloads payloads(communicator, at(1, 0) * sizeof(std::uint64_t), {});
  for (int rank = 0; rank < size_; ++rank)
    std::memcpy(&sent(rank, 0), payloads[rank], at(1, 0) * sizeof(std::uint64_t));
  compare(communicator);
}

std::optional<Payload> split_payload(const Call& call, int, int) {
  static_assert(sizeof(std::size_t) == sizeof(std::uint64_t));
  Payload payload;
  payload.data[0] = std::as_bytes(call.input_counts);
  payload.data[1] = std::as_bytes(call.output_counts);
  payload.bytes = payload.data[0].size() + payload.data[1].size();
  return payload;
}

void Splits::exchange(Communicator& communicator, const Call& call) {
  table_.resize(at(size_, 0));
  auto* own = &sent(communicator.rank(), 0);
  std::copy(call.input_counts.begin(), call.input_counts.end(), own);
  std::copy(call.output_counts.begin(), call.output_counts.end(), own + size_);

  const std::size_t bytes = at(1, 0) * sizeof(std::uint64_t);
  const auto row = [&](int behind) {
    return &sent(communicator.ring_rank((communicator.ring_position() - behind + size_) % size_), 0);
  };
  for (int step = 0; step < size_ - 1; ++step) {
    std::memcpy(communicator.right().reserve(), row(step), bytes);
    communicator.right().commit(bytes);
    std::memcpy(row(step + 1), communicator.left().take_committed(bytes), bytes);
    communicator.left().release();
  }
}

void Splits::compare(Communicator& communicator) const {
  for (int from = 0; from < size_; ++from)
    for (int to = 0; to < size_; ++to) {
      if (sent(from, to) == expected(to, from)) continue;
      communicator.fail(
          ErrorCode::mismatch,
          base::text("all_to_all of group ", communicator.name(), ": ", communicator.names().rank(from),
                     " sends ", sent(from, to), " elements to ", communicator.names().rank(to),
                     ", which expects ", expected(to, from),
                     ". The input splits of each rank must be the output splits of the others."));
      // This throws the first failure, which may be another rank's of the same disagreement.
      communicator.check();
    }
}

std::size_t Splits::count(int from, int to) const {
  return table_.empty() ? equal_ : sent(from, to);
}

std::size_t Splits::longest() const {
  if (table_.empty()) return equal_;
  return *std::max_element(table_.begin(), table_.end());
}

std::size_t Splits::input_offset(int from, int to) const {
  if (table_.empty()) return static_cast<std::size_t>(to) * equal_;
  const auto* row = &table_[at(from, 0)];
  return std::accumulate(row, row + to, std::size_t(0));
}

std::size_t Splits::output_offset(int from, int to) const {
  if (table_.empty()) return static_cast<std::size_t>(from) * equal_;
  const auto* row = &table_[at(to, size_)];
  return std::accumulate(row, row + from, std::size_t(0));
}

}  // namespace vccl
