#include <functional>

#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/torch/program_line.hpp"
#include "csrc_device/torch/races/state.hpp"

namespace vdev::races {
namespace {

thread_local constinit Site current_site = 0;

}  // namespace

Site Sites::add(const char* call, const PythonLine& line) {
  const std::lock_guard lock(mutex_);
  auto& calls = known_[&line];
  const auto found = calls.find(std::string_view(call));
  if (found != calls.end()) return found->second;
  const auto site = static_cast<Site>(texts_.size());
  texts_.push_back({call, &line});
  calls.emplace(call, site);
  return site;
}

SiteText Sites::text_of(Site site) {
  const std::lock_guard lock(mutex_);
  return site < texts_.size() && site != 0 ? SiteText{texts_[site].first, *texts_[site].second} : SiteText();
}

// A task must not ask for the program's line: the thread that holds the interpreter's lock may wait for it. A
// thread of autograd works for a call of backward(), and has no line of its own.
Site site_of(const char* call) {
  const bool may_ask = acts_for_stream() || !(Queue::inside_task() || Queue::on_worker());
  const auto* line = may_ask ? &program_line() : &PythonLine::none();
  if (may_ask && line->file.empty()) line = &interpreter().line_of_main_thread();
  return Watch::get().sites.add(call, *line);
}

SiteText text_of_site(Site site) {
  return Watch::get().sites.text_of(site);
}

CallScope::CallScope(const char* call) : site_(site_of(call)), outer_(std::exchange(current_site, site_)) {}

CallScope::~CallScope() {
  current_site = outer_;
}

void allocated(const void* block, std::size_t bytes, const Stream& stream) {
  const Site site = current_site != 0 ? current_site : site_of("the allocation");
  Watch::get().of(stream)->allocated(block, bytes, lane_of(stream), site);
}

}  // namespace vdev::races
