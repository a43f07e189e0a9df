// Tells the race detector (sanitizer/) what a program does with streams, events and memory.
//
// The functions below are the hooks that the rest of the library calls, each where the program's call is
// known. A wait that only the cards need, such as that of an operator which runs at its call, is no hook: a
// GPU does not have it. Callers ask is_on() first, so that nothing is paid while nobody looks for races.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/clock.hpp"
#include "csrc_device/runtime/stream.hpp"
#include "csrc_device/torch/threads/interpreter.hpp"
#include "sanitizer/detector.hpp"

namespace vdev {

class Capture;

namespace races {

using sanitizer::Access;
using sanitizer::Lane;
using sanitizer::Point;
using sanitizer::Site;

inline std::atomic<bool> watching{false};
/// Returns whether races are looked for. Relaxed: a call beside the one that switches it on may be missed.
inline bool is_on() noexcept {
  return watching.load(std::memory_order_relaxed);
}

/// Describes who acts.
struct LaneText {
  enum class Kind : std::uint8_t { host, stream, operations } kind = Kind::host;
  std::string text;  // "stream 3 of vdev:0", "the host's main thread", "operations of group 0 on vdev:0"
  int card = -1;
  std::int64_t stream = 0;  // its id, for Kind::stream
};

/// Names a call of the program.
struct SiteText {
  std::string call;  // "aten::mul", "all_reduce"
  PythonLine line;
};

struct Report {
  enum class Kind : std::uint8_t { race, unwritten, gone, useless } kind = Kind::race;
  sanitizer::Race race;
  SiteText first, second, allocated, freed;
  LaneText first_lane, second_lane;
  std::uintptr_t address = 0;  // of the tensor that the second access touches
  std::vector<std::int64_t> shape;
  std::string dtype;
  std::int64_t waited_ns = 0;  // by the host in a wait that ordered nothing
  std::string first_process;   // "rank 1" or "process 77" if the first access is that of another process
  int first_rank = -1;         // of another process, if it is known
};

/// What is looked for besides races.
struct Options {
  bool unwritten = false;  // memory that is read before anything was written to it
  bool useless = false;    // waits of the host that order nothing
};

/// Begins to look for races, from a state in which nothing has happened. `report` is called on the thread of
/// the second access, within its call and without any lock; it may throw.
void start(const Options& options, std::function<void(const Report&)> report);
void stop();

/// Returns the number of a call by the running line of the program.
Site site_of(const char* call);
SiteText text_of_site(Site site);
LaneText text_of_lane(Lane lane);

/// Makes `call` the one by which the calling thread's allocations are known, for as long as this exists.
class CallScope {
 public:
  explicit CallScope(const char* call);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
  Site site() const { return site_; }

 private:
  const Site site_, outer_;
};

/// Returns the calling thread's lane. A thread of Python has one of its own. All others, such as autograd's,
/// work for the main thread and share its lane: nobody sees how C++ orders them.
Lane host_lane();
/// Gives the calling thread a lane that begins after `start`.
void begin_thread(const Point& start, const std::string& name);
/// Takes the lane back, and returns its end.
Point end_thread();
/// Orders threads: what the calling thread has done, and a wait for that.
Point host_point();
void host_waits_for(const Point& point);

Lane lane_of(const Stream& stream);
/// Returns the lane of operations that run on no stream of the program, such as messages with one peer.
/// `owner` and `number`, which is not negative, identify it. `card` is -1 for operations on the host's
/// memory.
Lane lane_of_operations(const void* owner, int number, const std::string& text, int card);

/// Returns what the stream has been given until now, as an event records it.
Point point_of(const Stream& stream);
void wait(const Stream& stream, const Point& point);
void wait(Lane lane, const Point& point);
void wait(const Stream& stream, const Stream& other);
/// Call these where the host has waited, as a GPU's host would have. `waited_ns` says for how long, and
/// `call` by which call; null if the program has only asked whether the work was done.
void host_waits_for(const Stream& stream, std::int64_t waited_ns, const char* call);
void host_waits_for(const Point& point, std::int64_t waited_ns, const char* call);
void host_waits_for_card(int card, std::int64_t waited_ns);

/// Measures a wait of the host, if races are looked for.
class WaitClock {
 public:
  std::int64_t nanoseconds() const { return begin_ == 0 ? 0 : base::monotonic_ns() - begin_; }

 private:
  const std::int64_t begin_ = is_on() ? base::monotonic_ns() : 0;
};

/// A storage over a pointer to a card's memory, as from_blob() makes it. It does not keep that memory.
struct RawView;

/// What an access reads or writes, and how a report shows it.
struct Touched {
  Access access;
  std::vector<std::int64_t> shape;
  const char* dtype = "";
  std::shared_ptr<RawView> raw;  // null unless the tensor is over a pointer that the program has taken

  /// Describes a dense tensor.
  Touched(const at::Tensor& dense, bool writes);
  /// Describes memory of which nothing else is known.
  explicit Touched(Access bytes) : access(std::move(bytes)), dtype("bytes") {}
};
/// Records what a call of the current thread gives to `stream`, behind what the thread has done. Reports
/// races.
void access(const Stream& stream, Site site, const std::vector<Touched>& touched);
/// Does the same for an operation that runs on `lane`, behind what `behind` holds if it is not null. Returns
/// the operation's end.
Point access(Lane lane, const Stream* behind, Site site, const std::vector<Touched>& touched);
/// Records that `stream` copies memory to another place, where it stays unwritten if nothing has written it.
void moved(const Stream& stream, Site site, const Touched& from, const Touched& to);
/// Records what the calling thread itself does.
void host_access(Site site, const std::vector<Touched>& touched);

/// Runs a function of the program that was given to a stream. What it does to the host's memory is done in
/// the stream's order, and not in that of the thread that happens to run it.
class OnStream {
 public:
  /// Call this when the program gives the function to the stream.
  explicit OnStream(const Stream& stream);
  void run(const std::function<void()>& function) const;

 private:
  Lane lane_;
  Point before_;
};

/// Returns whether the calling thread runs such a function.
bool acts_for_stream() noexcept;

void allocated(const void* block, std::size_t bytes, const Stream& stream);
void keep_for(const void* block, const Stream& stream);
/// Tells that an operation which ends at `end` holds its memory until then, and that it holds it no longer.
void hold(const Point& end, const std::vector<Touched>& touched);
void let_go(const Point& end, const void* block);
void freed(const void* block);
/// Call this when the program has emptied the allocator's cache.
void released();

/// A capture is followed by a detector of its own, because nothing of it runs. Its accesses are those of
/// every replay.
using GraphAccesses = std::shared_ptr<const std::vector<Access>>;
GraphAccesses end_capture(const Capture& capture);
void replay(const Stream& stream, const GraphAccesses& accesses);

}  // namespace races
}  // namespace vdev
