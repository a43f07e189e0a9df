#include "transport/failure.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

#include "transport/deadline.hpp"

namespace vccl {

bool Failure::record(ErrorCode code, const std::string& text) noexcept {
  std::uint32_t expected = FailureRecord::none;
  // Sequentially consistent, as is every flag that a sleeper looks at: see wait.hpp.
  if (!record_.state.compare_exchange_strong(expected, FailureRecord::writing)) return false;
  record_.code = code;
  record_.length = static_cast<std::uint32_t>(std::min(text.size(), FailureRecord::kMaxText));
  std::memcpy(record_.text, text.data(), record_.length);
  record_.state.store(FailureRecord::set);
  return true;
}

Error Failure::error() const {
  // The writer is a few hundred nanoseconds from done, unless it was killed in between.
  const Deadline patience = Deadline::in(Milliseconds(200));
  while (record_.state.load(std::memory_order_acquire) != FailureRecord::set) {
    if (patience.passed()) {
      return Error(ErrorCode::peer_dead, "a rank of the group failed and died while it said why");
    }
    std::this_thread::yield();
  }
  // The record is a peer's memory: its length is not trusted beyond what fits.
  const std::size_t length = std::min<std::size_t>(record_.length, FailureRecord::kMaxText);
  return Error(record_.code, std::string(record_.text, length));
}

}  // namespace vccl
