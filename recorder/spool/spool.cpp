#include "recorder/spool.hpp"

#include <pthread.h>

#include <utility>

#include "base/signals.hpp"
#include "recorder/spool/spool_file.hpp"

namespace vccl {

Spool::Spool(FlightRecorder& recorder, SpoolSettings settings)
    : recorder_(recorder), interval_(settings.interval) {
  const bool hashes = settings.hashes;
  file_ = std::make_unique<SpoolFile>(recorder, std::move(settings));
  recorder_.want_details(true, hashes);
  const base::SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
}

Spool::~Spool() {
  end(std::chrono::milliseconds(0));
  // The thread is the parent's, and nothing of it is here.
  if (made_.inherited() && thread_.joinable()) thread_.detach();
}

void Spool::end(std::chrono::milliseconds patience) noexcept {
  if (made_.inherited()) return;
  {
    const std::lock_guard lock(mutex_);
    if (joined_) return;
    if (!ending_) end_by_ = std::chrono::steady_clock::now() + patience;
    ending_ = true;
    if (!std::exchange(joined_, true)) changed_.notify_all();
  }
  thread_.join();
  recorder_.want_details(false, false);
}

void Spool::run() {
  ::pthread_setname_np(::pthread_self(), "vccl-record");
  std::unique_lock lock(mutex_);
  while (!ending_) {
    changed_.wait_for(lock, interval_, [&] { return ending_; });
    lock.unlock();
    file_->turn(false);
    lock.lock();
  }
  const auto end_by = end_by_;
  lock.unlock();
  while (file_->waits() && std::chrono::steady_clock::now() < end_by) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    file_->turn(false);
  }
  file_->turn(true);
  file_->finish();
}

}  // namespace vccl
