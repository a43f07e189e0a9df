#include "csrc_pg/dumps/own_flight_recorder.hpp"

#include <cstdio>
#include <memory>

#include "base/fork.hpp"
#include "base/sealed_memory.hpp"

namespace vccl {
namespace {

FlightRecorder::Stacks room_for(StacksToRecord stacks) {
  if (stacks == StacksToRecord::none) return FlightRecorder::Stacks::none;
  return stacks == StacksToRecord::line ? FlightRecorder::Stacks::lines : FlightRecorder::Stacks::whole;
}

struct OwnRecorder {
  const RecorderVariables variables = read_recorder_variables();
  std::unique_ptr<FlightRecorder> recorder;

  OwnRecorder() {
    try {
      recorder = std::make_unique<FlightRecorder>(
          FlightRecorder::Settings{.entries = variables.entries, .stacks = room_for(variables.stacks)});
    } catch (const base::SystemError& error) {
      std::fprintf(stderr, "[vccl] The flight recorder records nothing: %s\n", error.what());
      recorder = std::make_unique<FlightRecorder>(FlightRecorder::Settings{.entries = 0});
    }
  }
};

OwnRecorder& own() {
  static base::OnePerProcess<OwnRecorder> one;
  return one.get();
}

}  // namespace

FlightRecorder& own_flight_recorder() {
  return *own().recorder;
}

const RecorderVariables& own_recorder_variables() {
  return own().variables;
}

}  // namespace vccl
