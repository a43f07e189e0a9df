#include "csrc_pg/operations/fault_handlers.hpp"

#include <unistd.h>

#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc_device/runtime/fail_allocation.hpp"
#include "csrc_pg/dumps/own_flight_recorder.hpp"
#include "faults/faults.hpp"
#include "recorder/flight_reader.hpp"
#include "transport/block_hook.hpp"
#include "transport/link_faults.hpp"

namespace vccl {
namespace {

/// Returns the other processes of this one's job that are on its host, by what the flight recorders say.
std::vector<int> other_ranks_of_host() {
  std::vector<int> others;
  std::optional<FlightSnapshot> own;
  std::vector<std::pair<int, FlightSnapshot>> all;
  for (auto& found : find_flight_recorders()) {
    if (!found.reader || !found.alive) continue;
    try {
      auto snapshot = found.reader->read();
      if (found.pid == ::getpid())
        own = std::move(snapshot);
      else
        all.emplace_back(found.pid, std::move(snapshot));
    } catch (const FlightRefused&) {
      continue;  // it was damaged meanwhile
    }
  }
  if (!own) return others;
  for (const auto& [pid, snapshot] : all) {
    const bool same_job = get_text(snapshot.process.job) == get_text(own->process.job);
    if (same_job && get_text(snapshot.process.host) == get_text(own->process.host)) others.push_back(pid);
  }
  return others;
}

std::string strike_links(const faults::Fault& fault) {
  switch (fault.kind) {
    case faults::Kind::reset_link:
      return link_faults::reset();
    case faults::Kind::cut_link:
      return link_faults::cut(std::chrono::ceil<Milliseconds>(std::chrono::duration<double>(fault.amount)));
    case faults::Kind::drop_link:
      return link_faults::drop();
    case faults::Kind::delay_link:
      return link_faults::delay(
          std::chrono::ceil<Milliseconds>(std::chrono::duration<double, std::milli>(fault.amount)));
    case faults::Kind::loss_link:
      return link_faults::lose(fault.amount, fault.draw);
    default:
      return "it is no fault of links";
  }
}

void tell_recorder(const std::string& fault) noexcept {
  try {
    own_flight_recorder().note_fault(fault);
  } catch (const std::exception&) {
    // A variable of the recorder is wrong. The first group that this process makes says so.
  }
}

}  // namespace

void prepare_faults(RaiseFault raise) {
  faults::set_handlers({.raise = raise,
                        .fail_allocation = &vdev::fail_next_allocation,
                        .ranks_of_host = &other_ranks_of_host,
                        .strike_links = &strike_links,
                        .heal_links = &link_faults::heal,
                        .tell = &tell_recorder});
  block_hook.store(&faults::moved, std::memory_order_relaxed);
}

}  // namespace vccl
