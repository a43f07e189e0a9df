#include "csrc_pg/collectives/ring/chain_reduction.hpp"

#include "csrc_pg/collectives/kernels/many_reduction.hpp"

namespace vccl {

ChainReduction::ChainReduction(Communicator& communicator, const Call& call, Partials partials)
    : right_(communicator.right()),
      left_(communicator.left()),
      reduction_(*find_reduction(call.dtype, call.op)),
      element_(size_of(call.dtype)),
      scalar_(scalar_of(call, communicator.size())),
      slots_(partials == Partials::in_slots || reduction_.start || reduction_.partial_size != element_) {}

std::size_t ChainReduction::block_bytes(std::size_t bytes) const {
  return bytes * element_ / reduction_.partial_size;
}

void ChainReduction::begin(std::size_t offset, const std::byte* own, std::size_t count) {
  if (!reduction_.start) {
    right_.post(offset, count * element_);
    return;
  }
  reduction_.start(right_.reserve(), nullptr, own, count, scalar_);
  right_.commit(count * reduction_.partial_size);
}

void ChainReduction::add(std::size_t offset, const std::byte* own, std::byte* result, std::size_t count,
                         bool is_first, bool is_last) {
  const std::size_t partial_bytes = count * reduction_.partial_size;
  const bool from_element = is_first && !reduction_.start;
  const std::byte* theirs =
      slots_ && !from_element ? left_.take_committed(partial_bytes) : left_.take(offset, count * element_);
  const bool to_slot = slots_ && !is_last;
  if (to_slot) result = right_.reserve();
  if (from_element && is_last) {
    const std::byte* const inputs[] = {theirs, own};
    const double scalars[] = {scalar_, scalar_};
    reduction_.many(result, inputs, 2, count, scalars, {});
  } else {
    const Kernel kernel = from_element ? reduction_.first : is_last ? reduction_.last : reduction_.middle;
    kernel(result, theirs, own, count, scalar_);
  }
  left_.release();
  if (to_slot) right_.commit(partial_bytes);
}

}  // namespace vccl
