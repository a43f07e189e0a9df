// The first failure of a communicator, which the ranks of one host share.
#pragma once

#include <string>

#include "transport/error.hpp"
#include "transport/shared/control_memory.hpp"

namespace vccl {

/// A view of a host's failure record. Any thread of any process that maps the record may call any member.
class RecordedFailure {
 public:
  explicit RecordedFailure(FailureRecord& record) : record_(record) {}

  /// Returns whether a failure was recorded. This is one load of a cache line that is not written before a
  /// failure. The load and the record are sequentially consistent. So if a rank announces itself, as a
  /// sleeper or at the start of an operation, and then sees no failure, the rank that records one later sees
  /// the announcement.
  bool happened() const noexcept { return record_.state.load() != FailureRecord::none; }
  /// Writes the record unless there is one already. Returns whether this call wrote it. Longer texts are cut.
  bool record(ErrorCode code, const std::string& text) noexcept;
  /// Returns the failure. Call this only after happened() has returned true.
  Error error() const;

 private:
  FailureRecord& record_;
};

}  // namespace vccl
