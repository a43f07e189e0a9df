#include "csrc_pg/collectives/selector.hpp"

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.hpp"
#include "csrc_pg/collectives/buffers/payloads.hpp"
#include "csrc_pg/collectives/selection/algorithm_list.hpp"
#include "csrc_pg/collectives/selection/preference.hpp"
#include "csrc_pg/collectives/selection/tuned_table.hpp"

namespace vccl {

namespace {

constexpr std::size_t kRows = std::size(kTunedTable), kCollectives = std::size_t(Collective::barrier) + 1;

constexpr bool works_in(Reach reach, MemoryKind memory) {
  const bool mapped = memory == MemoryKind::mapped || memory == MemoryKind::mapped_across;
  const bool across = memory == MemoryKind::mapped_across || memory == MemoryKind::staged_across;
  if (needs_mapping(reach) && !mapped) return false;
  return across ? reach != Reach::one_host && reach != Reach::mapped : reach != Reach::across;
}

// Finds the algorithm of a row. Does not compile for a table that names an algorithm which is not there, or
// which cannot use the row's kind of memory.
constexpr const Algorithm* named(const TunedRange& row) {
  for (const Algorithm& algorithm : kAlgorithms)
    if (algorithm.collective == row.collective && std::string_view(algorithm.name) == row.algorithm &&
        works_in(algorithm.reach, row.memory))
      return &algorithm;
  throw "tuned_table.hpp names an algorithm that is not in algorithm_list.hpp: run `vccl.bench tune` anew";
}

constexpr auto kAlgorithmOfRow = [] {
  std::array<const Algorithm*, kRows> found{};
  for (std::size_t row = 0; row < kRows; ++row) found[row] = named(kTunedTable[row]);
  return found;
}();

// The rows of a collective and a kind of memory. They are found at compile time, since every call needs them.
struct Rows {
  std::size_t begin = 0, end = 0;
};
constexpr auto kRowsOf = [] {
  std::array<std::array<Rows, kMemoryKinds>, kCollectives> all{};
  for (std::size_t row = 0; row < kRows; ++row) {
    auto& rows = all[std::size_t(kTunedTable[row].collective)][std::size_t(kTunedTable[row].memory)];
    if (rows.end == 0)
      rows.begin = row;
    else if (rows.end != row)
      throw "the rows of a collective and a kind of memory have to follow each other in tuned_table.hpp";
    rows.end = row + 1;
  }
  return all;
}();

/// Returns what an algorithm sends along with a call, and nothing if it cannot do the call. `across` says
/// that there are several hosts.
std::optional<Payload> payload_for(const Algorithm& algorithm, const Call& call, int rank, int size,
                                   bool across) {
  if (!algorithm.payload) return Payload();
  auto payload = algorithm.payload(call, rank, size);
  if (payload && payload->bytes > Peers::kPayloadBytes) payload.reset();
  if (payload && across && payload->bytes * std::size_t(size) > Payloads::kMostBytes) payload.reset();
  return payload;
}

/// Fills a Choice with the algorithms that it is offered, the preferred ones first.
class Chooser {
 public:
  Chooser(Communicator& communicator, const Call& call)
      : call_(call),
        rank_(communicator.rank()),
        size_(communicator.size()),
        hosts_(communicator.host_ring()),
        one_host_(communicator.all_peers()),
        mappable_(hosts_ ? hosts_->mappable() : one_host_ && communicator.all_peers()->mappable()),
        bytes_(longest_buffer(call, size_)) {}

  void offer(const Algorithm& algorithm) {
    if (algorithm.collective != call_.collective) return;
    if (algorithm.reach != Reach::anywhere && !hosts_ && !one_host_) return;
    if (!works_in(algorithm.reach, mappable_ ? mapped_kind() : staged_kind())) return;
    if (needs_mapping(algorithm.reach) && choice_.first) return;
    // A payload is announced before anybody knows where the memory lies.
    if (choice_.first && algorithm.payload && algorithm.payload != choice_.first->payload) return;
    const auto payload = payload_for(algorithm, call_, rank_, size_, hosts_);
    if (!payload) return;
    if (choice_.first)
      choice_.otherwise = &algorithm;
    else
      choice_ = {&algorithm, nullptr, *payload};
  }
  void offer(const std::vector<Preference>& preferences) {
    for (const Preference& preference : preferences) {
      if (done()) return;
      if (bytes_ >= preference.min_bytes && bytes_ <= preference.max_bytes) offer(*preference.algorithm);
    }
  }
  /// Offers the table's algorithms for such memory, from the row of the call's size on, until one can do the
  /// call.
  void offer(MemoryKind memory) {
    const Rows& rows = kRowsOf[std::size_t(call_.collective)][std::size_t(memory)];
    const auto before = chosen();
    for (std::size_t i = rows.begin; i < rows.end && chosen() == before; ++i) {
      const TunedRange& row = kTunedTable[i];
      if (bytes_ <= row.max_bytes && size_ >= row.min_ranks && size_ <= row.max_ranks)
        offer(*kAlgorithmOfRow[i]);
    }
  }
  void offer_all() {
    for (const Algorithm& algorithm : kAlgorithms) {
      if (done()) return;
      offer(algorithm);
    }
  }

  bool mappable() const { return mappable_; }
  MemoryKind mapped_kind() const { return hosts_ ? MemoryKind::mapped_across : MemoryKind::mapped; }
  MemoryKind staged_kind() const { return hosts_ ? MemoryKind::staged_across : MemoryKind::staged; }
  bool done() const { return choice_.first && (!needs_mapping(choice_.first->reach) || choice_.otherwise); }
  const Choice& choice() const { return choice_; }
  std::size_t bytes() const { return bytes_; }

 private:
  int chosen() const { return (choice_.first != nullptr) + (choice_.otherwise != nullptr); }

  const Call& call_;
  const int rank_, size_;
  const HostRing* const hosts_;  // null on one host
  const bool one_host_, mappable_;
  const std::size_t bytes_;
  Choice choice_{};
};

}  // namespace

std::span<const TunedRange> tuned_table() noexcept {
  return kTunedTable;
}

std::vector<std::string> capable_families(std::string_view collective, std::size_t bytes, int size,
                                          MemoryKind memory) {
  std::vector<std::string> names;
  const bool across = memory == MemoryKind::mapped_across || memory == MemoryKind::staged_across;
  for (const Algorithm& algorithm : kAlgorithms) {
    if (to_string(algorithm.collective) != collective) continue;
    if (!works_in(algorithm.reach, memory)) continue;
    Call call{algorithm.collective, Dtype::float32, ReduceOp::sum, 0, 1};
    if (const std::size_t element = longest_buffer(call, size); element > 0) call.count = bytes / element;
    if (payload_for(algorithm, call, 0, size, across)) names.emplace_back(algorithm.name);
  }
  return names;
}

std::uint32_t Choice::number() const {
  const auto index = [](const Algorithm* algorithm) {
    return algorithm ? std::uint32_t(algorithm - kAlgorithms) + 1 : 0;
  };
  return index(first) << 16 | index(otherwise);
}

// Preferences come first: the entries of VCCL_ALGO for this collective whose sizes include the call's. Then
// comes the table (selection/tuned_table.hpp): of the rows for the collective, the kind of memory and the
// number of ranks, the one with the smallest max_bytes that includes the longest buffer of the call, and the
// rows behind it where that one's algorithm cannot do the call. What the table does not offer, the list of
// all algorithms does. A choice has a second algorithm where the first one needs mapped memory: a rank's
// buffer may lie elsewhere, which is known only when all ranks have announced theirs.
Choice choose_algorithms(Communicator& communicator, const Call& call) {
  Chooser chooser(communicator, call);
  chooser.offer(preferences(communicator.algorithm_choice()));
  if (chooser.mappable() && !chooser.choice().first) chooser.offer(chooser.mapped_kind());
  if (!chooser.done()) chooser.offer(chooser.staged_kind());
  if (!chooser.done()) chooser.offer_all();
  if (chooser.done()) return chooser.choice();
  throw Error(
      ErrorCode::unsupported,
      base::text("no algorithm can do ", to_string(call.collective), " of ", chooser.bytes(), " bytes over ",
                 communicator.host_count(), " hosts. Please report this: the ring should do every call"));
}

void check_algorithm_choice(const std::string& choice) {
  (void)preferences(choice);
}

}  // namespace vccl
