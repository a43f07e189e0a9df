#include "csrc_device/runtime/process_event.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "base/fork.hpp"
#include "base/futex.hpp"
#include "base/peer_file.hpp"
#include "base/process.hpp"
#include "base/sealed_memory.hpp"
#include "base/signals.hpp"
#include "base/text.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/promise.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/sharing/memory_name.hpp"

namespace vdev {
namespace {

constexpr std::uint64_t kParticipants = 64;
constexpr std::uint64_t kParticipantBits = 8;
constexpr std::uint64_t kPidBits = 22;  // the system gives no higher process numbers
// After this time a waiter looks whether the recorder lives.
constexpr std::chrono::milliseconds kPeriod{50};

std::uint64_t number_of(std::uint64_t last) {
  return last >> kParticipantBits;
}
std::uint64_t recorder_of(std::uint64_t last) {
  return last & ((1U << kParticipantBits) - 1);
}

std::int64_t pid_of(std::uint64_t participant) {
  return static_cast<std::int64_t>(participant & ((1U << kPidBits) - 1));
}

/// Returns what stands for a process, and for no other one later: its number, and when it was started. It is
/// one word, so that nobody sees a process that takes a place with the birth of the one before.
std::uint64_t participant_of(std::int64_t pid) {
  return base::birth_of(static_cast<pid_t>(pid)) << kPidBits | static_cast<std::uint64_t>(pid);
}

/// Raises `value` to `number`.
void raise_to(std::atomic<std::uint64_t>& value, std::uint64_t number) {
  std::uint64_t seen = value.load();
  while (seen < number && !value.compare_exchange_weak(seen, number)) {
  }
}

void wake_all(std::atomic<std::uint32_t>& word) {
  word.fetch_add(1);
  base::futex_wake(word);
}

}  // namespace

/// Is what the processes share. All operations on it are sequentially consistent: they are rare.
struct ProcessEvent::Content {
  std::atomic<std::uint64_t> last;     // the number of the last record, and the place of the recorder
  std::atomic<std::uint64_t> reached;  // the highest number whose stream has come there
  std::atomic<std::uint64_t> failed;   // the highest number whose stream was not able to
  std::atomic<std::uint32_t> wakes;    // waiters sleep on it; changes with `reached` and `failed`
  std::atomic<std::uint64_t> participants[kParticipants];  // participant_of(); 0 for nobody

  bool lives(std::uint64_t place) const {
    const std::uint64_t participant = participants[place].load();
    return participant != 0 && participant == participant_of(pid_of(participant));
  }
  /// Returns whether the last record was made in this place and is not reached.
  bool awaited(std::uint64_t place) const {
    const std::uint64_t record = last.load();
    return recorder_of(record) == place && number_of(record) > reached.load();
  }
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "processes share the numbers");

/// Is the task that says that a record is reached. Behind a failure that stands, the record has failed, as
/// other processes would read what was not written. So it has if the task is given up or dropped.
class ProcessEvent::Signal final : public TaskBody {
 public:
  Signal(std::shared_ptr<ProcessEvent> event, std::uint64_t number)
      : event_(std::move(event)), number_(number) {}
  ~Signal() override {
    if (made_.inherited()) return;
    if (!reached_) raise_to(event_->content_->failed, number_);
    wake_all(event_->content_->wakes);
  }
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;

  void run() override {
    if (failure_before_this_task()) return;
    raise_to(event_->content_->reached, number_);
    reached_ = true;
  }
  void give_up(const FailurePtr&) override {}

 private:
  const std::shared_ptr<ProcessEvent> event_;
  const std::uint64_t number_;
  const base::ProcessMark made_;
  bool reached_ = false;
};

ProcessEvent::ProcessEvent(base::FileDescriptor file) : file_(std::move(file)) {
  void* mapped = ::mmap(nullptr, sizeof(Content), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (mapped == MAP_FAILED) throw base::SystemError("mmap of an event", errno);
  content_ = static_cast<Content*>(mapped);
}

ProcessEvent::~ProcessEvent() {
  // A process may open an event again and again. No task holds this object any more, so a record that is
  // still awaited has failed, and why_never() tells that from the end of the process by the place.
  if (own_ < kParticipants && !made_.inherited() && !content_->awaited(own_))
    content_->participants[own_].store(0);
  ::munmap(content_, sizeof(Content));
}

std::shared_ptr<ProcessEvent> ProcessEvent::make() {
  try {
    std::shared_ptr<ProcessEvent> event(
        new ProcessEvent(base::make_sealed_memory("vdev:event", sizeof(Content))));
    event->join();
    return event;
  } catch (const base::SystemError& error) {
    throw CardError(base::text("An interprocess event cannot be made: ", error.what(), "."));
  }
}

std::shared_ptr<ProcessEvent> ProcessEvent::open(const std::string& handle) {
  try {
    const auto name = MemoryName::of_bytes(handle);
    name.check_reachable();
    if (name.memory.bytes != sizeof(Content) || name.ledger_fd >= 0)
      throw CardError("the handle is not that of an event");
    std::shared_ptr<ProcessEvent> event(new ProcessEvent(name.open(name.memory_fd, name.memory)));
    event->join();
    return event;
  } catch (const std::exception& error) {
    throw CardError(base::text("An event of another process cannot be opened: ", error.what(), "."));
  }
}

/// Takes a place among the participants: a free one, or that of a process that has ended and whose record
/// nobody waits for.
void ProcessEvent::join() {
  const std::uint64_t self = participant_of(::getpid());
  for (std::uint64_t place = 0; place < kParticipants; ++place) {
    std::uint64_t found = content_->participants[place].load();
    if (found != 0 && (content_->awaited(place) || content_->lives(place))) continue;
    if (!content_->participants[place].compare_exchange_strong(found, self)) continue;
    own_ = place;
    return;
  }
  throw CardError(base::text("more than ", kParticipants, " processes use one event"));
}

std::string ProcessEvent::handle() const {
  MemoryName name;
  name.set_process();
  name.memory_fd = file_.get();
  name.memory = base::identify_file(file_.get());
  return name.bytes();
}

std::string ProcessEvent::identity() const {
  const auto file = base::identify_file(file_.get());
  return base::text(file.device, ":", file.inode);
}

std::uint64_t ProcessEvent::record(Stream& stream) {
  if (stream.queue()->capture())
    throw CardError(
        "operation not permitted while a stream is captured: the record of an interprocess event");
  std::uint64_t last = content_->last.load();
  std::uint64_t number;
  do {
    number = number_of(last) + 1;
  } while (!content_->last.compare_exchange_weak(last, number << kParticipantBits | own_));
  stream.enqueue(Task(std::make_shared<Signal>(shared_from_this(), number)));
  return number;
}

std::uint64_t ProcessEvent::last_record() const {
  return number_of(content_->last.load());
}

/// Returns why the record will never be reached, or an empty text.
std::string ProcessEvent::why_never(std::uint64_t record) const {
  const std::uint64_t last = content_->last.load();
  const std::uint64_t place = recorder_of(last);
  // A later record is awaited in the place of an earlier one whose recorder has ended: with it, all are
  // reached.
  const bool dead = number_of(last) != 0 && !content_->lives(place);
  const bool failed = content_->failed.load() >= record;
  if (content_->reached.load() >= record || (!dead && !failed)) return "";
  const std::int64_t pid = pid_of(content_->participants[place].load());
  return dead ? base::text("An interprocess event will never be reached: the process ", pid,
                           " that has recorded it has ended.")
              : std::string(
                    "An interprocess event will never be reached: the stream on which another process has "
                    "recorded it has failed before. That process raises the error.");
}

bool ProcessEvent::reached() const {
  const std::uint64_t record = last_record();
  if (content_->reached.load() >= record) return true;
  if (const std::string why = why_never(record); !why.empty()) throw CardError(why);
  return false;
}

/// Fulfils the promise when the record is reached, or never will be. Ends early if nobody waits any more.
void ProcessEvent::watch(std::uint64_t record, Promise& promise) {
  while (true) {
    const std::uint32_t seen = content_->wakes.load();
    if (content_->reached.load() >= record) return promise.fulfil(nullptr);
    if (const std::string why = why_never(record); !why.empty())
      return promise.fulfil(program_errors().fail_unknown(std::make_exception_ptr(CardError(why))));
    {
      const std::lock_guard lock(mutex_);
      const auto& point = promise.event().completion();
      const bool current = pending_.lock() == point;  // else point() hands another one out
      if (point.use_count() <= unneeded_) {
        if (current) pending_.reset();
        return;
      }
    }
    base::futex_wait(content_->wakes, seen, kPeriod);
  }
}

Event ProcessEvent::point() {
  const std::lock_guard lock(mutex_);
  const std::uint64_t record = last_record();
  if (content_->reached.load() >= record) return {};
  // The failure of a reached point may have been dealt with, so a later caller gets a new one.
  if (auto pending = pending_.lock(); pending && pending_record_ == record && !pending->reached())
    return Event(std::move(pending));
  auto promise = std::make_shared<Promise>("the record of an interprocess event by another process");
  unneeded_ = promise->event().completion().use_count();
  pending_ = promise->event().completion();
  pending_record_ = record;
  Event event = promise->event();
  const base::SignalsBlocked blocked;
  std::thread thread([self = shared_from_this(), record, promise] { self->watch(record, *promise); });
  ::pthread_setname_np(thread.native_handle(), "vdev/event");
  thread.detach();
  return event;
}

}  // namespace vdev
