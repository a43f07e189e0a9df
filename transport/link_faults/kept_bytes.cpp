#include "transport/link_faults/kept_bytes.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/signals.hpp"
#include "transport/link_faults/foreign_memory.hpp"

namespace vccl::link_faults {
namespace {

// How long a connection that takes no more bytes is left alone.
constexpr Milliseconds kPause{2};

std::string copied(const void* data, std::size_t size) {
  const ForeignMemory data_of_libzmq;
  return {static_cast<const char*>(data), size};
}

}  // namespace

bool KeptBytes::keep(ino_t connection, int descriptor, const void* data, std::size_t size,
                     Clock::time_point due) {
  try {
    std::lock_guard lock(mutex_);
    if (!runs_) {
      const base::SignalsBlocked blocked;
      std::thread thread([this] { run(); });
      pthread_setname_np(thread.native_handle(), "vccl delay");
      thread.detach();
      runs_ = true;
    }
    auto found = queues_.find(connection);
    if (found == queues_.end()) {
      base::FileDescriptor own(::fcntl(descriptor, F_DUPFD_CLOEXEC, 3));
      if (!own) return false;
      found = queues_.emplace(connection, Queue{std::move(own), {}}).first;
    }
    auto& pieces = found->second.pieces;
    if (!pieces.empty()) due = std::max(due, pieces.back().due);
    pieces.push_back({due, copied(data, size)});
    changed_.notify_all();
    return true;
  } catch (const std::exception&) {  // there is no memory, or no thread
    return false;
  }
}

bool KeptBytes::holds(ino_t connection) {
  std::lock_guard lock(mutex_);
  return queues_.contains(connection);
}

bool KeptBytes::empty() {
  std::lock_guard lock(mutex_);
  return queues_.empty();
}

void KeptBytes::hurry() {
  std::lock_guard lock(mutex_);
  for (auto& [connection, queue] : queues_)
    for (Piece& piece : queue.pieces) piece.due = Clock::now();
  changed_.notify_all();
}

void KeptBytes::wait(Milliseconds more) {
  std::unique_lock lock(mutex_);
  auto last = Clock::now();
  for (const auto& [connection, queue] : queues_)
    if (!queue.pieces.empty()) last = std::max(last, queue.pieces.back().due);
  changed_.wait_until(lock, last + more, [&] { return queues_.empty(); });
}

void KeptBytes::run() {
  std::unique_lock lock(mutex_);
  while (!queues_.empty()) changed_.wait_until(lock, send_due());
  runs_ = false;
  changed_.notify_all();
}

/// Sends what is due. Returns when to look again.
Clock::time_point KeptBytes::send_due() {
  const auto now = Clock::now();
  auto next = Clock::time_point::max();
  for (auto entry = queues_.begin(); entry != queues_.end();) {
    Queue& queue = entry->second;
    const auto later = send_due(queue, now);
    if (queue.pieces.empty()) {
      entry = queues_.erase(entry);
    } else {
      next = std::min(next, later);
      ++entry;
    }
  }
  return queues_.empty() ? now : next;
}

/// Does the same for one connection.
Clock::time_point KeptBytes::send_due(Queue& queue, Clock::time_point now) {
  auto& pieces = queue.pieces;
  while (!pieces.empty() && pieces.front().due <= now) {
    Piece& piece = pieces.front();
    const ssize_t sent = ::send(queue.connection.get(), piece.bytes.data() + piece.sent,
                                piece.bytes.size() - piece.sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return now + kPause;
    if (sent < 0) {  // the connection has ended
      pieces.clear();
      break;
    }
    piece.sent += static_cast<std::size_t>(sent);
    if (piece.sent == piece.bytes.size()) pieces.pop_front();
  }
  return pieces.empty() ? now : pieces.front().due;
}

}  // namespace vccl::link_faults
