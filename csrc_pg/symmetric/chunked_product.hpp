// A matrix product whose first factor comes in chunks.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace vccl::symmetric {

/// Returns a @ b. Each chunk of a's rows is read once its word of `signals` is not 0 any more, beginning with
/// chunk `pivot`. Other streams write chunks and words meanwhile; the product fails if a word does not come
/// within ten minutes.
at::Tensor product_of_chunks(const at::Tensor& a, const at::Tensor& b, const at::Tensor& signals,
                             std::int64_t pivot);

}  // namespace vccl::symmetric
