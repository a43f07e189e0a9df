#include "transport/questions/answerer.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <map>
#include <system_error>
#include <utility>

#include "base/signals.hpp"
#include "base/system_calls.hpp"
#include "transport/support/protocol.hpp"

namespace vccl {
namespace {

// How long the last answer may take to go out.
constexpr Milliseconds kLinger{300};
constexpr Milliseconds kRetry{100};

}  // namespace

AnsweringRank answering_rank(int rank, const ListenerRecord& record) {
  return {rank, record.host, record.endpoint, record.key, record.token};
}

Answerer::Answerer(const LinkSettings& settings, std::size_t ranks, AnswerQuestion answer, const Log& log)
    : answer_(std::move(answer)),
      wake_(base::make_event_counter()),
      listener_(std::make_unique<ZmqSocket>(ZmqSocket::Kind::router, settings.silence)),
      record_(ListenerRecord::listen(*listener_, settings, ranks, log)) {
  if (!wake_) throw_system("an event for the thread that answers other hosts");
  const base::SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), "vccl answers");
  } catch (const std::system_error& error) {
    errno = error.code().value();
    throw_system("starting the thread that answers other hosts");
  }
}

Answerer::~Answerer() {
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

void Answerer::run() {
  const int data = listener_->data_descriptor(), monitor = listener_->monitor_descriptor();
  while (!ends()) {
    int limit = -1;
    try {
      // The descriptors become readable only after an attempt to read has found nothing.
      while (answer_once()) {
      }
    } catch (const std::exception&) {
      // libzmq or memory fails. Something may be left to read, of which the descriptors say nothing.
      limit = static_cast<int>(kRetry.count());
    }
    pollfd watched[] = {{wake_.get(), POLLIN, 0}, {data, POLLIN, 0}, {monitor, POLLIN, 0}};
    ::poll(watched, 3, limit);
  }
  listener_->close(kLinger);
}

bool Answerer::ends() const {
  pollfd wake{wake_.get(), POLLIN, 0};
  return ::poll(&wake, 1, 0) > 0;
}

// Many ranks may ask the same at the same time, because their waits have begun together.
bool Answerer::answer_once() {
  while (listener_->hung_up()) {
  }
  std::map<std::string, std::vector<std::string>> routes;  // of those who ask, by the question
  while (const auto received = listener_->receive()) {
    if (const auto question = question_of(*received)) routes[*question].push_back(received->route);
  }
  for (const auto& [question, askers] : routes) {
    if (ends()) return false;
    const auto parts = answer_(question);
    for (const auto& route : askers) send(route, parts);
  }
  return !routes.empty();
}

std::optional<std::string> Answerer::question_of(const ZmqSocket::Received& received) const {
  try {
    const auto message = read_control(received.control, -1);
    if (message.at("t").as_string() != "question" || message.at("token").as_string() != record_.token)
      return {};
    return message.at("question").as_binary();
  } catch (const Error&) {
    return {};
  }
}

void Answerer::send(const std::string& route, const std::vector<std::string>& parts) {
  const auto count = std::max<std::size_t>(parts.size(), 1);
  for (std::size_t part = 0; part < count; ++part) {
    const std::string empty;
    ZmqMessage payload(parts.empty() ? empty : parts[part]);
    const auto control =
        control_message("answer", {{"parts", std::uint64_t{parts.size()}}, {"part", std::uint64_t{part}}});
    if (listener_->post(route, control, &payload) != ZmqSocket::Sent::yes) return;
  }
}

}  // namespace vccl
