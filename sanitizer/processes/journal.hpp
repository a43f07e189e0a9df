// A file in memory to which several processes append records, and which each reads from the beginning.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/descriptor.hpp"

namespace sanitizer {

/// Names a journal for other processes of the same user and machine, while the process that made it lives.
struct JournalName {
  std::uint64_t pid = 0;
  std::uint64_t descriptor = 0;
  std::uint64_t device = 0, inode = 0;  // of the file, because the process may have ended
};

/// The file is gone when the last process that has it ends. Thread-safe.
///
/// Every record of another process that was appended before one's own is there once the own is appended: the
/// kernel appends under the file's lock.
class Journal {
 public:
  /// What a process appends to a longer journal is lost.
  static constexpr std::uint64_t kMostBytes = 256u << 20;

  /// Throws std::system_error.
  static std::shared_ptr<Journal> make();
  /// Returns null if the process has ended, or the file cannot be opened.
  static std::shared_ptr<Journal> open(const JournalName& name);

  JournalName name() const;
  void append(std::string_view record);
  /// Calls `take` with each record that was appended since the last call, this process's too.
  void read_new(const std::function<void(std::string_view)>& take);

 private:
  explicit Journal(base::FileDescriptor file) : file_(std::move(file)) {}

  const base::FileDescriptor file_;
  std::mutex mutex_;  // guards the next two
  std::uint64_t read_ = 0;
  std::string rest_;  // bytes of a record that was not whole yet
};

}  // namespace sanitizer
