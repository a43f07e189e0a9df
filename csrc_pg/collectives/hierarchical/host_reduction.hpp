// One host's steps of a reduction along a chain of hosts.
#pragma once

#include <cstddef>
#include <vector>

#include "csrc_pg/collectives/hierarchical/host_call.hpp"
#include "csrc_pg/collectives/kernels/reduction.hpp"

namespace vccl {

/// Adds up elements of all ranks of this host, straight from their inputs, in the order of ranks. The first
/// host of a chain begins a partial result, and every other host adds to it. The algorithm fixes the chain,
/// and with it every rounding.
class HostReduction {
 public:
  HostReduction(const HostCall& call, Communicator& communicator, const Call& arguments);

  /// Returns the length in bytes of the longest block of elements whose partial results fit into a block.
  std::size_t block_bytes() const;
  /// Returns whether a chain that begins at the host at a position begins with that host's elements as they
  /// are: it has one rank, whose elements are no partial results yet.
  bool begins_with_elements(int host) const;
  /// Returns the bytes that one element's partial result has when it comes from that host.
  std::size_t partial_size(bool elements) const { return elements ? element_ : reduction_.partial_size; }

  /// Return this rank's own elements `at` bytes into the input.
  const std::byte* own(std::size_t at) const { return inputs_[own_] + at; }
  /// Writes a partial result of `count` elements of this host, which lie `at` bytes into the inputs. This
  /// host must not begin with elements as they are.
  void begin(std::byte* partial, std::size_t at, std::size_t count) const;
  /// Adds this host's elements to what came from the chain. `elements` says that those are elements.
  void add(std::byte* partial, const std::byte* theirs, bool elements, std::size_t at,
           std::size_t count) const;
  /// Does the same at the chain's last host. The result may be in the place of the elements of a rank.
  void finish(std::byte* result, const std::byte* theirs, bool elements, std::size_t at, std::size_t count);

 private:
  const HostCall& call_;
  const Reduction& reduction_;
  const std::size_t element_;
  const int own_;
  const double divisor_;
  PerRank<const std::byte*> inputs_;  // of the ranks of this host
  PerRank<double> scalars_;           // that their elements are combined with
  std::vector<std::byte> partials_;
};

}  // namespace vccl
