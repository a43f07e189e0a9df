#include "transport/messages/descriptor_watch.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/periods.hpp"
#include "base/signals.hpp"
#include "base/system_calls.hpp"
#include "transport/deadline.hpp"

namespace vccl {
namespace {

constexpr int kAtOnce = 64;
constexpr int kWake = -1;  // the owner number of the thread's own descriptor

void add_to(const FileDescriptor& set, int descriptor, int owner, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = owner;
  if (epoll_ctl(set.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) throw_system("epoll_ctl");
}

}  // namespace

DescriptorWatch::DescriptorWatch(std::function<void()> notify)
    : notify_(std::move(notify)),
      levels_(base::make_epoll()),
      edges_(base::make_epoll()),
      wake_(base::make_event_counter()) {
  if (!levels_ || !edges_ || !wake_) throw_system("watching the links of messages");
  add_to(edges_, wake_.get(), kWake, EPOLLIN | EPOLLET);
  base::SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), "vccl msg links");
  } catch (const std::system_error& error) {
    errno = error.code().value();
  }
  if (!thread_.joinable()) throw_system("starting the thread that watches the links of messages");
}

DescriptorWatch::~DescriptorWatch() {
  ends_ = true;
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

void DescriptorWatch::add(int descriptor, int owner) {
  add_to(levels_, descriptor, owner, EPOLLIN);
  add_to(edges_, descriptor, owner, EPOLLIN | EPOLLET);
}

void DescriptorWatch::remove(int descriptor) {
  epoll_ctl(levels_.get(), EPOLL_CTL_DEL, descriptor, nullptr);
  epoll_ctl(edges_.get(), EPOLL_CTL_DEL, descriptor, nullptr);
}

const std::vector<int>& DescriptorWatch::ready() {
  epoll_event events[kAtOnce];
  const int count = epoll_wait(levels_.get(), events, kAtOnce, 0);
  ready_.clear();
  for (int i = 0; i < count; ++i) ready_.push_back(events[i].data.fd);
  return ready_;
}

void DescriptorWatch::tick(bool on) {
  if (ticks_.exchange(on) != on && on) eventfd_write(wake_.get(), 1);
}

void DescriptorWatch::run() {
  while (!ends_) {
    epoll_event events[kAtOnce];
    const int limit = ticks_ ? static_cast<int>(base::kWatchPeriod.count()) : -1;
    const int count = epoll_wait(edges_.get(), events, kAtOnce, limit);
    if (ends_ || count < 0) continue;  // a count below 0 is an interruption by a signal
    if (count != 1 || events[0].data.fd != kWake) notify_();
  }
}

}  // namespace vccl
