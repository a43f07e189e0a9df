#include "transport/questions.hpp"

#include <poll.h>

#include <algorithm>
#include <memory>

#include "transport/connections/control_messages.hpp"
#include "transport/connections/zmq_socket.hpp"
#include "transport/support/protocol.hpp"

namespace vccl {
namespace {

// A rank answers with one part for each process of its host.
constexpr std::int64_t kMostParts = 4096;

/// One question and what has come of its answer.
class Asking {
 public:
  explicit Asking(const Question& question) : socket_(ZmqSocket::Kind::dealer) {
    socket_.connect(question.to.endpoint, question.to.key, true);
    socket_.post({}, control_message("question", {{"token", question.to.token},
                                                  {"question", msgpack::Binary{question.text}}}));
  }

  int descriptor() const { return socket_.data_descriptor(); }
  bool over() const { return over_; }

  /// Reads what has come. A connection that ended brings nothing more.
  void read() {
    const bool ended = socket_.disconnected();
    try {
      while (!over_) {
        auto received = socket_.receive();
        if (!received) break;
        add(*received);
      }
    } catch (const Error&) {  // no rank answers like that
      parts_.clear();
      over_ = true;
    }
    over_ = over_ || ended || socket_.refused();
  }

  std::optional<std::vector<std::string>> take() {
    if (!complete_) return {};
    return std::move(parts_);
  }

 private:
  void add(const ZmqSocket::Received& received) {
    const auto message = read_control(received.control, -1);
    const auto count = message.at("parts").as_int(0, kMostParts);
    const auto part = message.at("part").as_int(0, std::max<std::int64_t>(count - 1, 0));
    if (message.at("t").as_string() != "answer" || !received.payload ||
        part != static_cast<std::int64_t>(parts_.size()))
      throw Error(ErrorCode::protocol, "an answer that no rank gives");
    const auto& bytes = *received.payload;
    if (count > 0) parts_.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    complete_ = static_cast<std::int64_t>(parts_.size()) == count;
    over_ = complete_;
  }

  ZmqSocket socket_;
  std::vector<std::string> parts_;
  bool complete_ = false, over_ = false;
};

}  // namespace

std::vector<std::optional<std::vector<std::string>>> ask(const std::vector<Question>& questions,
                                                         Milliseconds patience) {
  std::vector<std::unique_ptr<Asking>> all;
  for (const Question& question : questions) all.push_back(std::make_unique<Asking>(question));
  const auto deadline = Deadline::in(patience);
  for (;;) {
    // Reading comes first: a descriptor becomes readable only after an attempt to read.
    std::vector<pollfd> watched;
    for (const auto& asking : all) {
      asking->read();
      if (!asking->over()) watched.push_back({asking->descriptor(), POLLIN, 0});
    }
    if (watched.empty() || deadline.passed()) break;
    // Only a look notices a refused connection.
    constexpr Milliseconds kLook{50};
    const auto left = std::chrono::ceil<Milliseconds>(deadline.at - Clock::now());
    ::poll(watched.data(), watched.size(),
           static_cast<int>(std::clamp(left, Milliseconds(0), kLook).count()));
  }
  std::vector<std::optional<std::vector<std::string>>> answers;
  for (const auto& asking : all) answers.push_back(asking->take());
  return answers;
}

}  // namespace vccl
