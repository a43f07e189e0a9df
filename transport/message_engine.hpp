// The messages of one communicator: takes calls, matches, lets the ports move bytes, and says when it is
// done.
#pragma once

#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "transport/message_mapped.hpp"
#include "transport/message_matching.hpp"

namespace vccl {

/// Locks. A call puts itself on `intake_` (under its own small mutex) and then tries to get `mutex_`, under
/// which everything else is done, but for the callbacks. If somebody else has it, the call returns: whoever
/// lets go of `mutex_` looks at the intake afterwards. So no call waits for another's copying. A thread of
/// the engine, started when something is first left under way, does what nobody is there to do; it sleeps
/// while there is nothing.
class MessageEngine final : public Messages, private MessageSink {
 public:
  /// `remote` carries messages to other hosts; may be null where there are none. Throws what its start()
  /// throws.
  MessageEngine(Group& group, MessagePort* remote);
  /// Whatever is under way ends with Error(aborted). Not from within a Done.
  ~MessageEngine() override;

  void send(int to, int tag, const Signature& signature, std::span<const std::byte> bytes,
            const Deadline& deadline, Done done) override;
  void receive(int from, int tag, const Signature& signature, std::span<std::byte> bytes,
               const Deadline& deadline, Done done) override;

 private:
  struct Send {
    int to;
    int tag;
    Signature signature;
    std::span<const std::byte> bytes;
    Deadline deadline;
    Done done;
  };
  struct Receive {
    int from;
    int tag;
    Signature signature;
    std::span<std::byte> memory;
    Deadline deadline;
    Done done;
    int source = -1;  // of the message that it was matched with and that is on its way
  };
  using Call = std::variant<Send, Receive>;
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

  // On any thread, without a lock.
  void enter(Call call);
  void drive();
  bool has_intake();
  Round round(std::unique_lock<std::mutex> lock);
  void call_back(std::unique_lock<std::mutex> lock);
  bool leave_to_thread(const Round& last);
  void run();
  bool sleep(bool doze);

  // Under mutex_.
  bool step();
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
  void look_at_deadlines();
  void look_for_lost(const Send& send);
  void look_for_lost(const Receive& receive);
  const Loss* loss_of(int rank) const;
  /// The last of them, when no rank is left that could send to us.
  const Loss* loss_of_all() const;
  void start_thread();
  void stop(const Error& error);
  bool under_way() const { return !sends_.empty() || !receives_.empty(); }
  MessagePort* port_to(int rank);
  void finish_refused(Done& done, const Error& error);
  std::string unreceived_text(const Receive& receive) const;
  std::string text_of(const Send& send) const;
  std::string text_of(const Receive& receive) const;

  Group& group_;
  MappedPort mapped_;
  MessagePort* remote_;
  MessageLine& line_;
  const pid_t owner_ = getpid();

  std::mutex intake_mutex_;
  std::vector<Call> intake_;

  std::mutex mutex_;
  MessageMatching matching_;
  std::map<std::uint64_t, Send> sends_;        // by number, hence in the order of the calls
  std::map<std::uint64_t, Receive> receives_;  // the same
  std::map<std::pair<int, std::uint64_t>, std::uint64_t> taking_;  // source and its id: the receive's number
  std::unordered_map<int, Loss> lost_;
  bool sends_to_itself_ = false;
  std::uint64_t last_number_ = 0;
  Clock::time_point next_deadline_ = Clock::time_point::max();  // or earlier
  std::vector<Finished> finished_;                              // what nobody was told about yet
  std::shared_ptr<const Error> stopped_;                        // set once: with what everything ends
  bool over_ = false;
  std::thread thread_;
};

}  // namespace vccl
