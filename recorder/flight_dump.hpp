// Dumps of flight recorders in the form that torch's flight recorder has, so that torch's tools read them.
#pragma once

#include <cstdint>
#include <string>

#include "recorder/flight_reader.hpp"

namespace vccl {

/// Says what a dump is to have.
struct DumpOptions {
  bool operations = true;
  bool stacks = true;        // in the pickle only, as torch has it
  bool only_active = false;  // leaves out operations that have completed
  /// Returns torch's name of a dtype, or null for a number that is no dtype's.
  const char* (*dtype_name)(std::uint8_t dtype) = nullptr;
  std::string library;  // the name and the version of what wrote the record
};

/// Returns the dump as a pickle of dicts, lists, tuples, texts, numbers and None, which pickle.loads() reads.
/// It has the keys of torch 2.13's dumps (version "2.10") and their values. Torch's analyzer takes only some
/// names of backends, so the names of operations begin with "nccl:"; `library` says what wrote the dump.
std::string pickle_of(const FlightSnapshot& snapshot, const DumpOptions& options);

/// Returns the dump as JSON. As in torch's, all values of pg_status are texts, a time that is not known is 0,
/// and without operations there is no key for them.
std::string json_of(const FlightSnapshot& snapshot, const DumpOptions& options);

}  // namespace vccl
