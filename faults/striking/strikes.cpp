#include "faults/strikes.hpp"

#include <utility>

#include "base/lack.hpp"
#include "base/text.hpp"
#include "faults/faults.hpp"
#include "faults/process/ends.hpp"
#include "faults/record/handlers.hpp"

namespace vccl::faults {
namespace {

thread_local Strikes* running = nullptr;

bool is_damage(Kind kind) noexcept {
  return kind == Kind::corrupt || kind == Kind::nan;
}

bool is_at_call(const Fault& fault) noexcept {
  return fault.kind == Kind::raise || (fault.kind == Kind::oom && fault.at == Moment::before);
}

std::string strike_links(const Fault& fault) {
  return handlers().strike_links ? handlers().strike_links(fault) : "nothing here knows links";
}

}  // namespace

void Strikes::strike(Moment moment) {
  for (const Fault& fault : faults_) {
    if (fault.at != moment || is_damage(fault.kind) || is_at_call(fault) || fault.kind == Kind::slow)
      continue;
    if (is_of_links(fault.kind)) {
      note(fault, place_, strike_links(fault));
      continue;
    }
    note(fault, place_);
    if (fault.kind == Kind::full_disk) base::make_lack(base::Lack::space);
    if (fault.kind == Kind::no_descriptors) base::make_lack(base::Lack::descriptors);
    if (fault.kind == Kind::oom && handlers().fail_allocation) handlers().fail_allocation();
    if (fault.kind == Kind::lose_host) lose_host();
    strike_process(fault);
  }
}

void Strikes::strike_at_call() {
  for (const Fault& fault : faults_) {
    if (!is_at_call(fault)) continue;
    note(fault, place_);
    if (fault.kind == Kind::oom && handlers().fail_allocation) handlers().fail_allocation();
    if (fault.kind == Kind::raise && handlers().raise)
      handlers().raise(fault.type,
                       base::text("a fault of the plan struck rank ", place_.rank, " at ", place_.name,
                                  place_.group.empty() ? "" : base::text(" of group ", place_.group)));
  }
}

double Strikes::slowness() {
  double factor = 1;
  for (const Fault& fault : faults_) {
    if (fault.kind != Kind::slow) continue;
    note(fault, place_);
    factor *= fault.amount;
  }
  return factor;
}

void Damage::change(std::byte* at, std::byte to) {
  changed_.push_back({at, *at});
  *at = to;
}

void Damage::undo() noexcept {
  // In reverse, because a byte may have been changed twice.
  for (auto changed = changed_.rbegin(); changed != changed_.rend(); ++changed) *changed->at = changed->was;
  changed_.clear();
}

std::optional<std::uint64_t> Strikes::wrong_element() {
  for (const Fault& fault : faults_) {
    if (fault.kind != Kind::sdc) continue;
    note(fault, place_);
    return fault.draw;
  }
  return std::nullopt;
}

Damage Strikes::damage(Moment moment, std::span<std::byte> buffer, std::size_t element,
                       std::span<const std::byte> nan) {
  Damage damage;
  if (element == 0 || buffer.size() < element || has_damaged_[moment == Moment::after]) return damage;
  for (const Fault& fault : faults_) {
    if (!is_damage(fault.kind) || fault.at != moment) continue;
    if (fault.kind == Kind::nan && nan.size() != element) continue;
    has_damaged_[moment == Moment::after] = true;
    note(fault, place_);
    if (fault.kind == Kind::nan) {
      std::byte* const at = buffer.data() + fault.draw % (buffer.size() / element) * element;
      for (std::size_t i = 0; i < element; ++i) damage.change(at + i, nan[i]);
      continue;
    }
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(fault.amount); ++i) {
      const std::uint64_t bit = draw_of(fault.draw, i, 0, 0) % (buffer.size() * 8);
      damage.change(&buffer[bit / 8], buffer[bit / 8] ^ std::byte{1} << (bit % 8));
    }
  }
  return damage;
}

Running::Running(Strikes* strikes) noexcept : outer_(std::exchange(running, strikes)) {}

Running::~Running() {
  running = outer_;
}

Strikes* Running::current() noexcept {
  return running;
}

void moved() noexcept {
  Strikes* const strikes = running;
  if (!strikes || std::exchange(strikes->has_moved_, true)) return;
  strikes->strike(Moment::during);
}

}  // namespace vccl::faults
