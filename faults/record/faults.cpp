#include "faults/faults.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdio>
#include <mutex>
#include <set>
#include <utility>

#include "base/lack.hpp"
#include "base/text.hpp"
#include "faults/record/handlers.hpp"

namespace vccl::faults {
namespace {

/// Everything that the process knows of faults. Never destroyed, because threads may use it until the end.
struct State {
  std::mutex mutex;
  std::shared_ptr<Plan> plan;
  Identity self;
  std::string log;
  std::vector<Struck> struck;
  std::uint64_t count = 0;
  std::set<std::size_t> slow;  // the rules of the plan that have slowed something down
  Handlers handlers;
};

State& state() {
  static auto* one = new State;
  return *one;
}

std::atomic<std::int64_t> current_step{0};

double now() {
  timeval time = {};
  ::gettimeofday(&time, nullptr);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

/// Returns the text in quotes, as JSON has it.
std::string quoted(const std::string& characters) {
  std::string result = "\"";
  for (const char character : base::valid_text(characters)) {
    if (character == '"' || character == '\\') result += '\\';
    if (static_cast<unsigned char>(character) >= ' ') result += character;
  }
  return result + '"';
}

std::string json_of(const Struck& struck) {
  char time[32];
  std::snprintf(time, sizeof time, "%.6f", struck.time);
  return base::text("{\"rank\": ", struck.rank, ", \"kind\": ", quoted(struck.kind),
                    ", \"at\": ", quoted(struck.moment), ", \"place\": ", quoted(struck.place),
                    ", \"group\": ", quoted(struck.group), ", \"sequence\": ", struck.sequence,
                    ", \"step\": ", struck.step, ", \"rule\": ", struck.rule,
                    ", \"why_not\": ", quoted(struck.why_not), ", \"time\": ", std::string_view(time),
                    ", \"pid\": ", ::getpid(), "}\n");
}

void write_all(int fd, const std::string& line) {
  // One call: lines of several processes do not mix.
  [[maybe_unused]] const auto written = ::write(fd, line.data(), line.size());
}

void append(const std::string& path, const std::string& line) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return write_all(STDERR_FILENO, line);
  write_all(fd, line);
  ::close(fd);
}

}  // namespace

std::shared_ptr<Plan> switch_on(std::shared_ptr<Plan> plan) {
  auto& all = state();
  std::lock_guard lock(all.mutex);
  if (all.plan) {
    base::end_lacks();
    if (all.handlers.heal_links) all.handlers.heal_links();
  }
  if (plan) detail::was_on.store(true, std::memory_order_relaxed);
  detail::is_on.store(plan != nullptr, std::memory_order_relaxed);
  all.slow.clear();
  return std::exchange(all.plan, std::move(plan));
}

void set_handlers(const Handlers& handlers) {
  auto& all = state();
  std::lock_guard lock(all.mutex);
  all.handlers = handlers;
}

// The handlers are set when the module is loaded, before a plan is switched on.
const Handlers& handlers() noexcept {
  return state().handlers;
}

void set_log(const std::string& path) {
  auto& all = state();
  std::lock_guard lock(all.mutex);
  all.log = path;
}

void identify(const Identity& self) {
  auto& all = state();
  std::lock_guard lock(all.mutex);
  all.self = self;
}

void set_step(std::int64_t step) noexcept {
  current_step.store(step, std::memory_order_relaxed);
}

std::int64_t step() noexcept {
  return current_step.load(std::memory_order_relaxed);
}

std::shared_ptr<Strikes> decide(const Site& site) {
  std::shared_ptr<Plan> plan;
  Identity self;
  {
    auto& all = state();
    std::lock_guard lock(all.mutex);
    plan = all.plan;
    self = all.self;
  }
  if (!plan) return nullptr;
  auto faults = plan->decide(self, step(), site);
  if (faults.empty()) return nullptr;
  const bool described = !site.description.empty() && site.description != "undefined";
  return std::make_shared<Strikes>(
      Place{std::string(site.op.empty() ? site.phase : site.op),
            std::string(described ? site.description : site.group), site.sequence, self.rank, step()},
      std::move(faults));
}

std::shared_ptr<Strikes> begin_phase(std::string_view phase, std::string_view group,
                                     std::string_view description) {
  if (!on()) [[likely]]
    return nullptr;
  auto strikes = decide({.phase = phase, .group = group, .description = description});
  if (strikes) {
    strikes->strike_at_call();
    strikes->strike(Moment::before);
  }
  return strikes;
}

void note(const Fault& fault, const Place& place, const std::string& why_not) {
  const Struck struck{place.rank,
                      place.step,
                      place.name,
                      place.group,
                      place.sequence,
                      std::string(word_of(fault.kind)),
                      std::string(word_of(fault.at)),
                      now(),
                      fault.rule,
                      why_not};
  auto& all = state();
  std::string log;
  {
    std::lock_guard lock(all.mutex);
    // What slows every operation down would fill the record. It is noted once for a rule.
    if (fault.kind == Kind::slow && !all.slow.insert(fault.rule).second) return;
    ++all.count;
    if (all.struck.size() < kMostStruck) all.struck.push_back(struck);
    log = all.log;
  }
  const auto of_group = place.group.empty() ? std::string() : base::text(" of group ", place.group);
  const auto number = place.sequence == 0 ? std::string() : base::text(" ", place.sequence);
  const auto where = base::text(word_of(fault.at), " ", place.name, number, of_group, ", step ", place.step);
  if (why_not.empty() && handlers().tell) handlers().tell(base::text(word_of(fault.kind), " ", where));
  if (!log.empty()) return append(log, json_of(struck));
  if (!ends_process(fault.kind)) return;
  write_all(STDERR_FILENO, base::text("[vccl] rank ", place.rank, ": the fault ", word_of(fault.kind),
                                      " strikes ", where, " (rule ", fault.rule + 1, " of the plan)\n"));
}

std::vector<Struck> struck(std::uint64_t& count) {
  auto& all = state();
  std::lock_guard lock(all.mutex);
  count = all.count;
  return all.struck;
}

void lose_host() {
  if (handlers().ranks_of_host)
    for (const int pid : handlers().ranks_of_host()) ::kill(pid, SIGKILL);
  ::kill(::getpid(), SIGKILL);
}

}  // namespace vccl::faults
