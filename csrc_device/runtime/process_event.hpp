// Events that several processes record and wait for, as with CUDA's interprocess events.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/descriptor.hpp"
#include "base/fork.hpp"
#include "csrc_device/runtime/event.hpp"
#include "csrc_device/runtime/stream.hpp"

namespace vdev {

class Promise;

/// Is an event that lies in memory which the processes share. A record gets the next number, and the stream
/// on which it was made says when it has come there. As with CUDA, the event stands for its last record,
/// whichever process made it. Thread-safe.
class ProcessEvent : public std::enable_shared_from_this<ProcessEvent> {
 public:
  /// Makes an event that was never recorded, and so counts as reached. Throws CardError when the system
  /// refuses.
  static std::shared_ptr<ProcessEvent> make();
  /// Opens the event that another process, or this one, has described by handle(). Throws CardError, which
  /// says why the event cannot be used: the process has ended, or belongs to another machine, pid namespace
  /// or user.
  static std::shared_ptr<ProcessEvent> open(const std::string& handle);
  ~ProcessEvent();
  ProcessEvent(const ProcessEvent&) = delete;
  ProcessEvent& operator=(const ProcessEvent&) = delete;

  /// Returns the bytes by which other processes open the event while this process lives and has it.
  std::string handle() const;
  /// Returns a text that is the same in all processes that have the event, and is no other event's.
  std::string identity() const;
  /// Records the event behind `stream`'s tasks. Returns the number of the record. Throws CardError if the
  /// stream is captured.
  std::uint64_t record(Stream& stream);
  /// Returns the number of the last record that any process has made, or 0.
  std::uint64_t last_record() const;
  /// Returns whether the last record is reached. Throws CardError if it never will be, because the process
  /// that made it has ended or its stream has failed.
  bool reached() const;
  /// Returns an event of this process that is reached with the last record. If the record never will be
  /// reached, the event carries an error.
  Event point();

 private:
  struct Content;
  class Signal;

  explicit ProcessEvent(base::FileDescriptor file);
  void join();
  std::string why_never(std::uint64_t record) const;
  void watch(std::uint64_t record, Promise& promise);

  base::FileDescriptor file_;
  Content* content_ = nullptr;
  const base::ProcessMark made_;
  std::uint64_t own_ = UINT64_MAX;     // this object's place among the participants, if it has one
  std::mutex mutex_;                   // guards the members below
  std::weak_ptr<Completion> pending_;  // of point()'s event for the record `pending_record_`
  std::uint64_t pending_record_ = 0;
  long unneeded_ = 0;  // the number of owners of `pending_` when nobody waits
};

}  // namespace vdev
