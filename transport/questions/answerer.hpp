// Where a rank answers questions of ranks on other hosts, and of other processes of its user.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.hpp"
#include "transport/connections/peer_connection.hpp"
#include "transport/connections/zmq_socket.hpp"
#include "transport/questions.hpp"

namespace vccl {

/// Returns how to ask the rank of the job that answers where `record` says.
AnsweringRank answering_rank(int rank, const ListenerRecord& record);

/// Listens for questions, and answers them on a thread of its own, which sleeps in between.
/// Whoever asks has to know the token of record(). A question is a message {token, question}. Its answer is
/// one message {parts, part} for each part, with the part behind it.
class Answerer {
 public:
  /// `ranks` is how many ranks may ask at the same time. Throws Error(system).
  Answerer(const LinkSettings& settings, std::size_t ranks, AnswerQuestion answer, const Log& log);
  /// Ends the thread. Blocks until the question that is being answered has its answer. Further ones get none.
  ~Answerer();
  Answerer(const Answerer&) = delete;
  Answerer& operator=(const Answerer&) = delete;

  const ListenerRecord& record() const { return record_; }

 private:
  void run();
  bool ends() const;
  /// Answers what has been asked. Those who ask the same get the same answer. Returns whether there was
  /// something.
  bool answer_once();
  /// Returns the question of a message, or nothing if its sender does not know the token.
  std::optional<std::string> question_of(const ZmqSocket::Received& received) const;
  void send(const std::string& route, const std::vector<std::string>& parts);

  const AnswerQuestion answer_;
  base::FileDescriptor wake_;  // an eventfd that ends the thread
  std::unique_ptr<ZmqSocket> listener_;
  ListenerRecord record_;
  std::thread thread_;
};

}  // namespace vccl
