#include "csrc_pg/dumps/own_flight_recorder.hpp"

#include <cstdio>
#include <memory>

#include "base/fork.hpp"
#include "base/sealed_memory.hpp"
#include "transport/variables.hpp"

namespace vccl {
namespace {

struct OwnRecorder {
  std::unique_ptr<FlightRecorder> recorder;

  OwnRecorder() {
    const auto variables = read_recorder_variables();
    try {
      recorder = std::make_unique<FlightRecorder>(
          FlightRecorder::Settings{.entries = variables.entries, .stacks = variables.stacks});
    } catch (const base::SystemError& error) {
      std::fprintf(stderr, "[vccl] The flight recorder records nothing: %s\n", error.what());
      recorder = std::make_unique<FlightRecorder>(FlightRecorder::Settings{.entries = 0});
    }
  }
};

}  // namespace

FlightRecorder& own_flight_recorder() {
  static base::OnePerProcess<OwnRecorder> one;
  return *one.get().recorder;
}

}  // namespace vccl
