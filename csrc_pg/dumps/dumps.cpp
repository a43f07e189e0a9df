#include "csrc_pg/dumps/dumps.hpp"

#include <c10/core/ScalarType.h>

#include "base/text.hpp"
#include "csrc_pg/dumps/own_flight_recorder.hpp"
#include "include/vccl/version.hpp"
#include "recorder/flight_recorder.hpp"

namespace vccl {
namespace {

const char* dtype_name(std::uint8_t dtype) {
  return dtype < static_cast<std::uint8_t>(c10::ScalarType::NumOptions)
             ? c10::toString(static_cast<c10::ScalarType>(dtype))
             : nullptr;
}

FlightSnapshot own_snapshot() {
  const auto memory = own_flight_recorder().memory();
  return memory.empty() ? FlightSnapshot() : FlightReader(memory).read();
}

DumpOptions options_of(const FlightSnapshot& snapshot, bool operations, bool stacks, bool only_active) {
  auto options = dump_options(get_text(snapshot.process.backend));
  options.operations = operations;
  options.stacks = stacks;
  options.only_active = only_active;
  return options;
}

}  // namespace

// In pose the backend's name is "nccl", and the library is vccl all the same.
DumpOptions dump_options(const std::string& backend) {
  DumpOptions options;
  options.dtype_name = &dtype_name;
  options.library = base::text("vccl ", VCCL_VERSION_MAJOR, ".", VCCL_VERSION_MINOR, ".", VCCL_VERSION_PATCH,
                               backend == "nccl" ? " in the place of nccl" : "");
  return options;
}

std::string dump_pickle(bool operations, bool stacks, bool only_active) {
  const auto snapshot = own_snapshot();
  return pickle_of(snapshot, options_of(snapshot, operations, stacks, only_active));
}

std::string dump_json(bool operations, bool only_active) {
  const auto snapshot = own_snapshot();
  return json_of(snapshot, options_of(snapshot, operations, false, only_active));
}

}  // namespace vccl
