// The operators that write 32-bit words in the order of a stream, and the product that waits for such words.
#include <cstdint>
#include <limits>

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/registration.hpp"
#include "csrc_pg/symmetric/chunked_product.hpp"
#include "csrc_pg/symmetric/operators.hpp"

namespace vccl::symmetric {
namespace {

// The two return a Tensor by value, as torch calls them.

void check_words(const char* name, const at::Tensor& input, std::int64_t offset, std::int64_t val) {
  TORCH_CHECK(input.dim() == 1 && input.is_contiguous() && input.scalar_type() == at::kUInt32, name,
              ": input must be a flat, contiguous uint32 tensor.");
  TORCH_CHECK(offset >= 0, name, ": offset must be greater than or equal to 0 (got ", offset, ")");
  TORCH_CHECK(val >= 0 && val <= std::numeric_limits<std::uint32_t>::max(), name,
              ": val must be in the range of [0, 4294967295] (uint32_t), and is ", val);
}

at::Tensor memset32(at::Tensor& input, std::int64_t offset, std::int64_t val, std::int64_t count) {
  constexpr const char* name = "memset32_";
  check_words(name, input, offset, val);
  TORCH_CHECK(count > 0, name, ": count must be a positive integer (got ", count, ")");
  TORCH_CHECK(offset + count <= input.numel(), name, ": offset + count (", offset + count,
              ") exceeded the numel of the input (", input.numel(), ")");
  input.narrow(0, offset, count).fill_(val);
  return input;
}

at::Tensor write_value32(at::Tensor& input, std::int64_t offset, std::int64_t val) {
  constexpr const char* name = "stream_write_value32_";
  check_words(name, input, offset, val);
  TORCH_CHECK(offset < input.numel(), name, ": offset (", offset, ") exceeded the numel of the input (",
              input.numel(), ")");
  input.narrow(0, offset, 1).fill_(val);
  return input;
}

VDEV_LIBRARY_IMPL(symm_mem, vdev::dense_key(), m) {
  m.impl("memset32_", kernel<&memset32>());
  m.impl("stream_write_value32_", kernel<&write_value32>());
  m.impl("_async_input_mm", kernel<&product_of_chunks>());
}

}  // namespace
}  // namespace vccl::symmetric
