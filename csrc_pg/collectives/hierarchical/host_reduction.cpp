#include "csrc_pg/collectives/hierarchical/host_reduction.hpp"

#include <bit>

#include "csrc_pg/collectives/kernels/many_reduction.hpp"

namespace vccl {

HostReduction::HostReduction(const HostCall& call, Communicator& communicator, const Call& arguments)
    : call_(call),
      reduction_(*find_reduction(arguments.dtype, arguments.op)),
      element_(call.element()),
      own_(call.peers().own()),
      divisor_(scalar_of(arguments, communicator.size())),
      inputs_(call.ranks()),
      scalars_(call.ranks()) {
  const bool premul = arguments.op == ReduceOp::premul_sum;
  for (int peer = 0; peer < call.ranks(); ++peer) {
    inputs_.add(call.input(call.peers().ranks()[std::size_t(peer)]));
    scalars_.add(premul ? std::bit_cast<double>(call.peers().factor(peer)) : divisor_);
  }
}

std::size_t HostReduction::block_bytes() const {
  return Communicator::kBlockBytes * element_ / reduction_.partial_size;
}

bool HostReduction::begins_with_elements(int host) const {
  return !reduction_.start && call_.hosts().ranks(host).size() == 1;
}

void HostReduction::begin(std::byte* partial, std::size_t at, std::size_t count) const {
  int next = 1;
  if (reduction_.start)
    reduction_.start(partial, nullptr, inputs_[0] + at, count, scalars_[0]);
  else
    reduction_.first(partial, inputs_[0] + at, inputs_[next++] + at, count, divisor_);
  for (; next < call_.ranks(); ++next)
    reduction_.middle(partial, partial, inputs_[next] + at, count, scalars_[next]);
}

void HostReduction::add(std::byte* partial, const std::byte* theirs, bool elements, std::size_t at,
                        std::size_t count) const {
  (elements ? reduction_.first : reduction_.middle)(partial, theirs, inputs_[0] + at, count, scalars_[0]);
  for (int peer = 1; peer < call_.ranks(); ++peer)
    reduction_.middle(partial, partial, inputs_[peer] + at, count, scalars_[peer]);
}

void HostReduction::finish(std::byte* result, const std::byte* theirs, bool elements, std::size_t at,
                           std::size_t count) {
  const int last = call_.ranks() - 1;
  if (last == 0 && elements) {
    const std::byte* const inputs[] = {theirs, inputs_[0] + at};
    const double scalars[] = {divisor_, divisor_};
    reduction_.many(result, inputs, 2, count, scalars, {});
    return;
  }
  // Nothing is written to the result before the elements of all other ranks have been read.
  if (last > 0 && partials_.size() < count * reduction_.partial_size)
    partials_.resize(count * reduction_.partial_size);
  const std::byte* partial = theirs;
  for (int peer = 0; peer < last; ++peer) {
    (elements && peer == 0 ? reduction_.first : reduction_.middle)(partials_.data(), partial,
                                                                   inputs_[peer] + at, count, scalars_[peer]);
    partial = partials_.data();
  }
  reduction_.last(result, partial, inputs_[last] + at, count, scalars_[last]);
}

}  // namespace vccl
