#include "csrc_pg/symmetric/chunked_product.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>

#include "base/thread_waits.hpp"
#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/interruption.hpp"
#include "csrc_device/runtime/spoiled_memory.hpp"
#include "csrc_device/torch/gil.hpp"

namespace vccl::symmetric {
namespace {

constexpr auto kTimeout = std::chrono::minutes(10);
constexpr auto kPause = std::chrono::microseconds(20);

/// Shows the memory of a card's tensor to kernels of the CPU. The caller keeps the storage.
at::Tensor on_cpu(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       at::TensorOptions().dtype(tensor.scalar_type()));
}

/// Computes the product chunk by chunk. It is one task, and no operator, because an operator may run at its
/// call, before the caller has launched what writes the words.
class Product final : public vdev::TaskBody {
 public:
  Product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& signals, const at::Tensor& out,
          std::int64_t pivot)
      : kept_{a.storage(), b.storage(), signals.storage(), out.storage()},
        a_(on_cpu(a)),
        b_(on_cpu(b)),
        out_(on_cpu(out)),
        words_(static_cast<const std::atomic<std::uint32_t>*>(signals.data_ptr())),
        chunks_(signals.numel()),
        pivot_(pivot) {}

  void run() override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const std::int64_t rows = a_.size(0) / chunks_;
    for (std::int64_t step = 0; step < chunks_; ++step) {
      const std::int64_t chunk = (pivot_ + step) % chunks_;
      await(chunk);
      auto part = out_.narrow(0, chunk * rows, rows);
      at::mm_out(part, a_.narrow(0, chunk * rows, rows), b_);
    }
    if (vdev::SpoiledMemory::any()) vdev::spoiled_memory().renew(out_.data_ptr(), out_.nbytes());
  }

  void give_up(const vdev::FailurePtr& failure) override {
    vdev::spoiled_memory().spoil(out_.data_ptr(), out_.nbytes(), failure);
  }
  bool knows_its_memory() const noexcept override { return false; }

 private:
  void await(std::int64_t chunk) const {
    const base::ThreadWaits waits;
    const auto deadline = std::chrono::steady_clock::now() + kTimeout;
    while (words_[chunk].load(std::memory_order_acquire) == 0) {
      std::this_thread::sleep_for(kPause);
      TORCH_CHECK(!vdev::interrupted(), "_async_input_mm was interrupted while it waited for chunk ", chunk);
      TORCH_CHECK(std::chrono::steady_clock::now() < deadline,
                  "_async_input_mm waited ten minutes for chunk ", chunk, " of ", chunks_,
                  " of its first factor. Write to a_chunk_signals once a chunk is there.");
    }
  }

  const c10::Storage kept_[4];
  const at::Tensor a_, b_, out_;
  const std::atomic<std::uint32_t>* const words_;
  const std::int64_t chunks_, pivot_;
};

}  // namespace

at::Tensor product_of_chunks(const at::Tensor& a, const at::Tensor& b, const at::Tensor& signals,
                             std::int64_t pivot) {
  constexpr const char* name = "_async_input_mm";
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) && a.scalar_type() == b.scalar_type(),
              name, ": a and b must be matrices of one dtype that can be multiplied, and are ",
              a.scalar_type(), " of ", a.sizes(), " and ", b.scalar_type(), " of ", b.sizes());
  TORCH_CHECK(signals.dim() == 1 && signals.is_contiguous() && signals.scalar_type() == at::kUInt32, name,
              ": a_chunk_signals must be a flat, contiguous uint32 tensor");
  const std::int64_t chunks = signals.numel();
  TORCH_CHECK(chunks > 0 && a.size(0) % chunks == 0, name, ": the ", a.size(0),
              " rows of a cannot be divided into ", chunks, " chunks");
  TORCH_CHECK(pivot >= 0 && pivot < chunks, name, ": a_chunk_pivot must be one of the ", chunks, " chunks");
  TORCH_CHECK(a.device() == b.device() && a.device() == signals.device(), name, ": all must be on one card");
  auto out = at::empty({a.size(0), b.size(1)}, a.options(), at::MemoryFormat::Contiguous);
  const auto stream = vdev::current_stream(a.device().index());
  vdev::refuse_captured(*stream, "_async_input_mm, whose chunks come from other streams");
  {
    // Torch zeroes the words on this stream, and writes to them on another one that does not wait for that.
    // On a GPU the zeroes come first because they are launched first.
    const vdev::WithoutGil no_gil;
    stream->drain();
  }
  stream->enqueue(std::make_shared<Product>(a, b, signals, out, pivot), vdev::Start::kAtOnce);
  return out;
}

}  // namespace vccl::symmetric
