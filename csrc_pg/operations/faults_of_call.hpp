// The faults that a plan has for calls of the process group (faults/faults.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "csrc_pg/collectives/call.hpp"
#include "csrc_pg/operations/request.hpp"
#include "faults/faults.hpp"
#include "transport/communicator.hpp"

namespace vccl {

/// Returns the faults of a call, or null. Call this for every call in the order in which the program makes
/// them, and only if faults::on(). `sequence` is the number that the operation is going to have.
std::shared_ptr<faults::Strikes> faults_of_call(const Request& request, std::uint64_t sequence,
                                                const std::string& group, const std::string& description);
/// Does the same for the replay of a captured collective.
std::shared_ptr<faults::Strikes> faults_of_replay(const std::string& name, const std::string& group);

/// Damages what the call reads on this rank, as `strikes` say, until the object is destroyed. What lies in
/// the output as well stays damaged.
class DamagedInput {
 public:
  DamagedInput(faults::Strikes* strikes, const Communicator& communicator, const Call& call);
  ~DamagedInput();
  DamagedInput(const DamagedInput&) = delete;
  DamagedInput& operator=(const DamagedInput&) = delete;

 private:
  faults::Damage damage_;
  bool stays_ = false;
};

/// Damages what the call has written on this rank.
void damage_output(faults::Strikes* strikes, const Communicator& communicator, const Call& call);
/// Damages a message: what is to be sent (`before`) or what was received (`after`).
faults::Damage damage_message(faults::Strikes* strikes, faults::Moment moment, std::span<std::byte> bytes,
                              Dtype dtype);

}  // namespace vccl
