// The first failure of a group, as the ranks of one host share it.
#pragma once

#include <string>

#include "transport/error.hpp"
#include "transport/flags.hpp"

namespace vccl {

/// A view of a host's failure record. All members may be called from any thread of any process that maps it.
class Failure {
 public:
  explicit Failure(FailureRecord& record) : record_(record) {}

  /// One load of a line that nobody writes until something fails. Sequentially consistent, as the record is:
  /// who announced itself, as a sleeper or at the gate, and sees no failure then, is seen by who records one.
  bool happened() const noexcept { return record_.state.load() != FailureRecord::none; }
  /// Writes the record if nobody did yet; true for the one who did. Longer texts are cut.
  bool record(ErrorCode code, const std::string& text) noexcept;
  /// What happened. Only after happened().
  Error error() const;

 private:
  FailureRecord& record_;
};

}  // namespace vccl
