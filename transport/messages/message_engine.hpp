// The messages of one communicator: the engine takes calls, matches them, lets the ports move bytes, and
// calls back when a call is done.
#pragma once

#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/fork.hpp"
#include "transport/deadlock_watch.hpp"
#include "transport/messages/begun_receives.hpp"
#include "transport/messages/mapped_port.hpp"
#include "transport/messages/message_matching.hpp"

namespace vccl {

/// How the locks work: a call appends itself to `intake_`, under `intake_mutex_`, and then tries to lock
/// `mutex_`. Everything but the callbacks happens under `mutex_`. If another thread holds it, the call
/// returns, because every thread looks at the intake after it has released `mutex_`. So no call waits for
/// another call's copying. A thread of the engine moves messages while no call does. If there are other
/// hosts, it is started at once, otherwise when something is first left under way. It sleeps while there is
/// nothing to do.
class MessageEngine final : public Messages, private MessageSink, private WatchedMessages {
 public:
  /// `added` has the regions that this rank has added. `remote` carries messages to other hosts, and may be
  /// null if there are none. Throws what its start() throws.
  MessageEngine(const Group& group, FailureChannel& failures, const AddedRegions& added, MessagePort* remote);
  /// Ends everything that is under way with Error(aborted). Must not be called within a Done.
  ~MessageEngine() override;

  using Messages::send;
  void send(int to, MessageTag tag, const Signature& signature, std::span<const std::byte> bytes,
            const Deadline& deadline, Done done, std::shared_ptr<Waiter> waiter) override;
  bool meets_receive(int to, MessageTag tag) override { return begun_.count_send(to, tag); }
  void receive(int from, MessageTag tag, const Signature& signature, std::span<std::byte> bytes,
               const Deadline& deadline, Done done) override;

 private:
  struct Send {
    int to;
    MessageTag tag;
    Signature signature;
    std::span<const std::byte> bytes;
    Deadline deadline;
    Done done;
    std::shared_ptr<Waiter> waiter;
    bool is_awaited() const { return !waiter || waiter->waits(); }
  };
  struct Receive {
    int from;
    MessageTag tag;
    Signature signature;
    std::span<std::byte> memory;
    Deadline deadline;
    Done done;
    int source = -1;  // the source of the message that was matched and is on its way
  };
  using SendOrReceive = std::variant<Send, Receive>;
  struct Finished {
    Done done;
    int source;
    std::shared_ptr<const Error> error;
  };
  struct Loss {
    ErrorCode code;
    std::string how;
  };
  struct Round {
    bool moved = false;
    bool under_way = false;
    bool over = false;  // the engine is being destroyed
  };

  // The next members may be called on any thread that holds no lock of the engine.
  void enter(SendOrReceive call);
  void drive();
  bool has_intake();
  Round round(std::unique_lock<std::mutex> lock);
  void call_back(std::unique_lock<std::mutex> lock);
  bool leave_to_thread(const Round& last);
  void run();
  bool sleep(bool doze);
  void warn(Clock::time_point now);
  void report_if_lasting(const Round& last, Clock::time_point now);
  std::optional<std::vector<Pending>> pending() noexcept override;

  // The next members must be called with mutex_ held.
  template <class Step>
  void guarded(Step step);
  bool step();
  bool move_on();
  bool begin_calls();
  void begin(Send& send);
  void begin(Receive& receive);
  void deliver(std::uint64_t number, int source, const Envelope& envelope,
               std::optional<std::span<const std::byte>> payload);
  void offered(int source, const Envelope& envelope,
               std::optional<std::span<const std::byte>> payload) override;
  void sent(std::uint64_t id) override;
  void taken(int source, std::uint64_t id) override;
  void lost(int rank, ErrorCode code, const std::string& how) override;
  bool awaits(int source) const override { return matching_.awaits(source); }
  void look_at_deadlines();
  void look_for_lost(const Send& send);
  void look_for_lost(const Receive& receive);
  const Loss* loss_of(int rank) const;
  /// Returns the last loss if no rank is left that could send to this rank, and null otherwise.
  const Loss* loss_of_all() const;
  void start_thread();
  void stop(const Error& error);
  bool under_way() const { return !sends_.empty() || !receives_.empty(); }
  MessagePort* port_to(int rank);
  void finish_refused(Done& done, const Error& error);
  std::vector<Pending> list_pending() const;
  std::string unreceived_text(const Receive& receive) const;
  std::string what_of(const Signature& signature, const MessageTag& tag) const;
  std::string text_of(const Send& send) const;
  std::string text_of(const Receive& receive) const;

  const Group& group_;
  FailureChannel& failures_;
  MappedPort mapped_;
  BegunReceives begun_;
  MessagePort* remote_;
  MessageLine& line_;
  const base::ProcessMark made_;

  std::mutex intake_mutex_;
  std::vector<SendOrReceive> intake_;

  std::mutex mutex_;
  MessageMatching matching_;
  std::map<std::uint64_t, Send> sends_;        // by number, hence in the order of the calls
  std::map<std::uint64_t, Receive> receives_;  // by number as well
  std::map<std::pair<int, std::uint64_t>, std::uint64_t> taking_;  // from source and id to receive
  std::unordered_map<int, Loss> lost_;
  bool sends_to_itself_ = false;
  std::uint64_t last_number_ = 0;
  Clock::time_point next_deadline_ = Clock::time_point::max();  // the earliest deadline, or a time before it
  std::vector<Finished> finished_;                              // what was not called back yet
  std::shared_ptr<const Error> stopped_;  // set once: the error with which everything ends
  bool over_ = false;
  std::thread thread_;
  // Only the thread uses the next three.
  bool warned_ = false;  // since messages stand
  Clock::time_point stands_since_ = Clock::now();
  bool reported_ = false;  // to the DeadlockWatch
};

}  // namespace vccl
