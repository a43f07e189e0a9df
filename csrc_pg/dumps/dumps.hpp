// Dumps of this process's flight recorder.
#pragma once

#include <string>

#include "recorder/flight_dump.hpp"

namespace vccl {

/// Returns the options of a dump, with torch's names of dtypes and the version of vccl.
DumpOptions dump_options(const std::string& backend);

/// Returns the dump of this process as a pickle, which torch's analyzer reads. Needs no GIL.
std::string dump_pickle(bool operations, bool stacks, bool only_active);
/// Returns the same as JSON, without stacks.
std::string dump_json(bool operations, bool only_active);

}  // namespace vccl
