#include <functional>

#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/torch/program_line.hpp"
#include "csrc_device/torch/races/state.hpp"

namespace vdev::races {
namespace {

thread_local constinit Site current_site = 0;

}  // namespace

std::size_t Sites::Hash::operator()(const SiteText& site) const {
  const std::hash<std::string> hash;
  return hash(site.call) ^ (hash(site.line.file) * 3) ^ (static_cast<std::size_t>(site.line.number) << 20);
}

Site Sites::add(const char* call, PythonLine line) {
  const std::lock_guard lock(mutex_);
  const auto [found, is_new] = known_.try_emplace({call, std::move(line)}, static_cast<Site>(texts_.size()));
  if (is_new) texts_.push_back(&found->first);  // a map keeps its nodes where they are
  return found->second;
}

SiteText Sites::text_of(Site site) {
  const std::lock_guard lock(mutex_);
  return site < texts_.size() && site != 0 ? *texts_[site] : SiteText();
}

// A task must not ask for the program's line: the thread that holds the interpreter's lock may wait for it. A
// thread of autograd works for a call of backward(), and has no line of its own.
Site site_of(const char* call) {
  const bool may_ask = acts_for_stream() || !(Queue::inside_task() || Queue::on_worker());
  auto line = may_ask ? program_line() : PythonLine();
  if (may_ask && line.file.empty()) line = interpreter().line_of_main_thread();
  return Watch::get().sites.add(call, std::move(line));
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
