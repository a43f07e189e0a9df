// The record of this process in a file (VCCL_RECORD, vccl.record).
#pragma once

#include <chrono>
#include <string>

namespace vccl {

/// Begins to record if VCCL_RECORD asks for it. Calls after the first do nothing. A directory that cannot
/// take a record costs a line on stderr.
void begin_record_if_asked();
/// Begins to record what the groups of this process do from now on. Throws SpoolRefused if the directory
/// cannot take a record, or the process records already.
void begin_record(const std::string& directory, bool hashes);
/// Ends the record, if there is one, once the operations that it has are over, or `patience` has passed.
void end_record(std::chrono::milliseconds patience) noexcept;

}  // namespace vccl
