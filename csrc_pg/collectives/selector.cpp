// The table of algorithms, and the choice.
#include <vector>

#include "csrc_pg/collectives/algorithm.hpp"
#include "csrc_pg/collectives/algorithm_choice.hpp"
#include "csrc_pg/collectives/call.hpp"

namespace vccl {

namespace {

constexpr std::size_t K = 1024;

// Sizes in bytes of the longest buffer, and numbers of ranks. docs/algorithms.md has the measurements behind
// them.
constexpr Algorithm kAlgorithms[] = {
    {"oneshot", Collective::all_reduce, Reach::one_host, 0, 1 * K, 1, 2, oneshot_all_reduce, oneshot_payload},
    {"oneshot", Collective::all_reduce, Reach::one_host, 0, 16 * K, 3, kAnyRanks, oneshot_all_reduce,
     oneshot_payload},
    {"oneshot", Collective::all_gather, Reach::one_host, 0, 2 * K, 1, 2, oneshot_all_gather, oneshot_payload},
    {"oneshot", Collective::all_gather, Reach::one_host, 0, 16 * K, 3, kAnyRanks, oneshot_all_gather,
     oneshot_payload},
    {"oneshot", Collective::broadcast, Reach::one_host, 0, 8 * K, 1, 2, oneshot_broadcast, oneshot_payload},
    {"oneshot", Collective::broadcast, Reach::one_host, 0, 16 * K, 3, kAnyRanks, oneshot_broadcast,
     oneshot_payload},
    {"oneshot", Collective::reduce_scatter, Reach::one_host, 0, 4 * K, 1, 2, oneshot_reduce_scatter,
     oneshot_payload},
    {"oneshot", Collective::reduce_scatter, Reach::one_host, 0, 16 * K, 3, kAnyRanks, oneshot_reduce_scatter,
     oneshot_payload},
    {"oneshot", Collective::reduce, Reach::one_host, 0, 2 * K, 1, 2, oneshot_reduce, oneshot_payload},
    {"oneshot", Collective::reduce, Reach::one_host, 0, 16 * K, 3, kAnyRanks, oneshot_reduce,
     oneshot_payload},
    {"oneshot", Collective::gather, Reach::one_host, 0, 2 * K, 1, 2, oneshot_gather, oneshot_payload},
    {"oneshot", Collective::gather, Reach::one_host, 0, 16 * K, 3, kAnyRanks, oneshot_gather,
     oneshot_payload},
    {"oneshot", Collective::scatter, Reach::one_host, 0, 4 * K, 1, 2, oneshot_scatter, oneshot_payload},
    {"oneshot", Collective::scatter, Reach::one_host, 0, 16 * K, 3, kAnyRanks, oneshot_scatter,
     oneshot_payload},
    {"oneshot", Collective::all_to_all, Reach::one_host, 0, 4 * K, 1, 2, oneshot_all_to_all, oneshot_payload},
    {"oneshot", Collective::all_to_all, Reach::one_host, 0, 16 * K, 3, kAnyRanks, oneshot_all_to_all,
     oneshot_payload},
    {"oneshot", Collective::barrier, Reach::one_host, 0, kAnyLength, 1, kAnyRanks, oneshot_barrier,
     oneshot_payload},

    {"direct", Collective::all_reduce, Reach::mapped, 0, kAnyLength, 1, kAnyRanks, direct_all_reduce},
    {"direct", Collective::all_gather, Reach::mapped, 0, kAnyLength, 1, kAnyRanks, direct_all_gather},
    {"direct", Collective::broadcast, Reach::mapped, 0, kAnyLength, 1, kAnyRanks, direct_broadcast},
    {"direct", Collective::reduce_scatter, Reach::mapped, 0, kAnyLength, 1, kAnyRanks, direct_reduce_scatter},
    {"direct", Collective::reduce, Reach::mapped, 0, kAnyLength, 1, kAnyRanks, direct_reduce},
    {"direct", Collective::gather, Reach::mapped, 0, kAnyLength, 1, kAnyRanks, direct_gather},
    {"direct", Collective::scatter, Reach::mapped, 0, kAnyLength, 1, kAnyRanks, direct_scatter},
    {"direct", Collective::all_to_all, Reach::mapped, 0, kAnyLength, 1, kAnyRanks, direct_all_to_all,
     split_payload},

    // Memory that peers cannot map. The ring's blocks are staged too; what it lacks is one synchronisation
    // for all ranks instead of one for each.
    {"staged", Collective::all_reduce, Reach::one_host, 0, kAnyLength, 2, kAnyRanks, staged_all_reduce},
    {"staged", Collective::reduce_scatter, Reach::one_host, 0, kAnyLength, 2, kAnyRanks,
     staged_reduce_scatter},
    {"staged", Collective::reduce, Reach::one_host, 0, kAnyLength, 2, kAnyRanks, staged_reduce},
    {"staged", Collective::all_gather, Reach::one_host, 0, kAnyLength, 2, kAnyRanks, staged_all_gather},
    {"staged", Collective::broadcast, Reach::one_host, 0, kAnyLength, 2, kAnyRanks, staged_broadcast},
    {"staged", Collective::gather, Reach::one_host, 0, kAnyLength, 2, kAnyRanks, staged_gather},
    {"staged", Collective::scatter, Reach::one_host, 0, kAnyLength, 2, kAnyRanks, staged_scatter},
    {"staged", Collective::all_to_all, Reach::one_host, 0, kAnyLength, 2, kAnyRanks, staged_all_to_all,
     split_payload},

    {"ring", Collective::all_reduce, Reach::anywhere, 0, kAnyLength, 1, kAnyRanks, ring_all_reduce},
    {"ring", Collective::all_gather, Reach::anywhere, 0, kAnyLength, 1, kAnyRanks, ring_all_gather},
    {"ring", Collective::broadcast, Reach::anywhere, 0, kAnyLength, 1, kAnyRanks, ring_broadcast},
    {"ring", Collective::reduce_scatter, Reach::anywhere, 0, kAnyLength, 1, kAnyRanks, ring_reduce_scatter},
    {"ring", Collective::reduce, Reach::anywhere, 0, kAnyLength, 1, kAnyRanks, ring_reduce},
    {"ring", Collective::gather, Reach::anywhere, 0, kAnyLength, 1, kAnyRanks, ring_gather},
    {"ring", Collective::scatter, Reach::anywhere, 0, kAnyLength, 1, kAnyRanks, ring_scatter},
    {"ring", Collective::all_to_all, Reach::anywhere, 0, kAnyLength, 1, kAnyRanks, ring_all_to_all},
    {"ring", Collective::barrier, Reach::anywhere, 0, kAnyLength, 1, kAnyRanks, ring_barrier},
};

/// Fills a Choice with the algorithms that it is offered, the preferred ones first.
class Chooser {
 public:
  Chooser(Communicator& communicator, const Call& call)
      : call_(call),
        rank_(communicator.rank()),
        size_(communicator.size()),
        one_host_(communicator.peers()) {}

  void offer(const Algorithm& algorithm) {
    if (algorithm.reach != Reach::anywhere && !one_host_) return;
    // A payload is announced before anybody knows where the memory lies.
    const bool is_late = choice_.first != nullptr;
    if (is_late && algorithm.reach == Reach::mapped) return;
    if (is_late && algorithm.payload && algorithm.payload != choice_.first->payload) return;
    Payload payload;
    if (algorithm.payload) {
      const auto wanted = algorithm.payload(call_, rank_, size_);
      if (!wanted || wanted->bytes > Peers::kPayloadBytes) return;
      payload = *wanted;
    }
    if (choice_.first)
      choice_.otherwise = &algorithm;
    else
      choice_ = {&algorithm, nullptr, payload};
  }
  bool done() const { return choice_.first && (choice_.first->reach != Reach::mapped || choice_.otherwise); }
  const Choice& choice() const { return choice_; }

 private:
  const Call& call_;
  const int rank_, size_;
  const bool one_host_;
  Choice choice_{};
};

}  // namespace

std::span<const Algorithm> algorithms() noexcept {
  return kAlgorithms;
}

std::uint32_t Choice::number() const {
  const auto index = [](const Algorithm* algorithm) {
    return algorithm ? std::uint32_t(algorithm - kAlgorithms) + 1 : 0;
  };
  return index(first) << 16 | index(otherwise);
}

Choice choose_algorithms(Communicator& communicator, const Call& call) {
  const std::size_t bytes = longest_buffer(call, communicator.size());
  Chooser chooser(communicator, call);
  for (const Preference& preference : preferences(communicator.algorithm_choice())) {
    if (chooser.done()) break;
    if (preference.algorithm->collective == call.collective && bytes >= preference.min_bytes &&
        bytes <= preference.max_bytes)
      chooser.offer(*preference.algorithm);
  }
  for (const Algorithm& algorithm : algorithms()) {
    if (chooser.done()) break;
    if (algorithm.collective == call.collective && bytes >= algorithm.min_bytes &&
        bytes <= algorithm.max_bytes && communicator.size() >= algorithm.min_ranks &&
        communicator.size() <= algorithm.max_ranks)
      chooser.offer(algorithm);
  }
  if (chooser.done()) return chooser.choice();
  throw Error(ErrorCode::unsupported, std::string("no algorithm for ") + to_string(call.collective) + " of " +
                                          std::to_string(bytes) + " bytes over " +
                                          std::to_string(communicator.host_count()) + " hosts");
}

}  // namespace vccl
