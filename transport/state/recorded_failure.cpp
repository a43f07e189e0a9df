#include "transport/state/recorded_failure.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

#include "transport/deadline.hpp"
#include "transport/support/error_text.hpp"

namespace vccl {

bool RecordedFailure::record(ErrorCode code, const std::string& text) noexcept {
  std::uint32_t expected = FailureRecord::none;
  // Sequentially consistent, as every flag that a sleeper reads: see shared/flags.hpp.
  if (!record_.state.compare_exchange_strong(expected, FailureRecord::writing)) return false;
  record_.code = code;
  const std::string_view kept = cut_text(text, FailureRecord::kMaxText);
  record_.length = static_cast<std::uint32_t>(kept.size());
  std::memcpy(record_.text, kept.data(), kept.size());
  record_.state.store(FailureRecord::set);
  return true;
}

Error RecordedFailure::error() const {
  // The rank that writes the record needs only a few hundred nanoseconds, unless it was killed meanwhile.
  const Deadline patience = Deadline::in(Milliseconds(200));
  while (record_.state.load(std::memory_order_acquire) != FailureRecord::set) {
    if (patience.passed()) {
      return Error(ErrorCode::peer_dead, "a rank of the group failed and died while it said why");
    }
    std::this_thread::yield();
  }
  // The record is memory that a peer writes, so a length beyond kMaxText is not trusted.
  const std::size_t length = std::min<std::size_t>(record_.length, FailureRecord::kMaxText);
  return Error(record_.code, std::string(record_.text, length));
}

}  // namespace vccl
