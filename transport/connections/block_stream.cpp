#include "transport/connections/block_stream.hpp"

#include <algorithm>

#include "base/periods.hpp"
#include "base/text.hpp"

namespace vccl {
namespace {

static_assert(kMostPayload >= Communicator::kBlockBytes, "every block fits into a frame");

std::string text_of_header(const FrameHeader::Bytes& header) {
  return {reinterpret_cast<const char*>(header.data()), header.size()};
}

}  // namespace

BlockSender::BlockSender(const std::string& endpoint, FrameProtection protection, Milliseconds silence,
                         bool resumes, std::uint64_t attempt)
    : endpoint_(endpoint), silence_(silence), resumes_(resumes), sealer_(std::move(protection)) {
  connect();
  greet(attempt);
}

void BlockSender::connect() {
  auto socket =
      std::make_unique<ZmqSocket>(ZmqSocket::Kind::push, silence_, socket_ ? socket_->borrowed() : nullptr);
  socket->connect(endpoint_, "", resumes_);
  socket_ = std::move(socket);
  connected_at_ = Clock::now();
  ended_.reset();
}

void BlockSender::greet(std::uint64_t attempt) {
  const std::uint64_t number = sealer_.next();
  const Prepared greeting{number, text_of_header(sealer_.seal(FrameKind::greeting, attempt, {}, nullptr)),
                          nullptr, 0};
  socket_->send(greeting.header);
  if (resumes_) keep(greeting, 0);
}

BlockSender::Prepared BlockSender::prepare(std::uint64_t sequence, std::span<const std::byte> block,
                                           std::byte* slot) {
  const std::uint64_t number = sealer_.next();
  const FrameHeader::Bytes header = sealer_.seal(FrameKind::block, sequence, block, slot);
  return {number, text_of_header(header), sealer_.encrypts() ? slot : block.data(), block.size()};
}

bool BlockSender::send(const Prepared& block) {
  return block.data ? socket_->send(block.header, block.data, block.bytes) : socket_->send(block.header);
}

void BlockSender::keep(const Prepared& block, std::uint64_t number) {
  kept_.push_back({block, number});
}

// The peer opens frames in their order, so it has also got the greetings before the block. That it has read a
// short block, which came over the other connection, says nothing about a greeting.
void BlockSender::confirm(std::uint64_t number) {
  const auto last_read = std::find_if(kept_.rbegin(), kept_.rend(), [number](const Kept& kept) {
    return kept.block.data && kept.number <= number;  // a greeting has no data
  });
  kept_.erase(kept_.begin(), last_read.base());
}

void BlockSender::resume(std::uint64_t next, std::uint64_t attempt) {
  const std::uint64_t first = kept_.empty() ? sealer_.next() : kept_.front().block.frame;
  if (next < first || next > sealer_.next()) {
    throw Error(ErrorCode::protocol, base::text("it expects frame ", next, " of a stream of which frames ",
                                                first, " to ", sealer_.next(), " can come"));
  }
  while (!kept_.empty() && kept_.front().block.frame < next) kept_.pop_front();
  connect();
  for (const Kept& kept : kept_) send(kept.block);
  greet(attempt);
}

void BlockSender::retry() {
  if (!refused() || connected() || Clock::now() - connected_at_ < base::kRetryPeriod) return;
  connect();
  for (const Kept& kept : kept_) send(kept.block);
}

bool BlockSender::ended(Milliseconds time) {
  if (!ended_ && socket_->disconnected()) ended_ = Clock::now();
  return ended_ && Clock::now() - *ended_ >= time;
}

BlockReceiver::BlockReceiver(const LinkSettings& settings, const Log& log)
    : socket_(ZmqSocket::Kind::pull, settings.silence),
      endpoint_(socket_.bind(settings.address, settings.ports, 1, log)),
      log_(log) {}

std::uint64_t BlockReceiver::resume(std::uint64_t attempt) {
  attempt_ = attempt;
  peers_connection_.reset();
  socket_.reopen();
  return opener_->next();
}

std::optional<RemoteBlock> BlockReceiver::receive() {
  if (!opener_) return std::nullopt;
  while (auto received = socket_.receive()) {
    ZmqMessage& first = received->control;
    std::span<std::byte> payload;
    if (received->payload) payload = received->payload->bytes();
    FrameHeader header;
    const auto verdict = received->excess ? FrameOpener::Verdict::malformed
                                          : opener_->open({first.data(), first.size()}, payload, header);
    if (verdict == FrameOpener::Verdict::repeated && attempt_ > 0) {
      // Frames that came over an earlier connection as well. They may still come in between.
    } else if (verdict != FrameOpener::Verdict::good) {
      tell_of(first, verdict);
      if (peers_connection_ && first.connection() == peers_connection_) {
        peers_connection_.reset();
        socket_.end_proven();
      }
    } else if (header.kind == FrameKind::greeting) {
      greeted_ = true;
      // That of an earlier attempt may have been on its way when its connection ended.
      if (header.operation == attempt_) {
        socket_.shut(&first);
        peers_connection_ = first.connection();
      }
    } else if (received->payload) {
      return RemoteBlock{header.operation, std::move(*received->payload)};
    }
  }
  return std::nullopt;
}

void BlockReceiver::tell_of(const ZmqMessage& header, FrameOpener::Verdict verdict) {
  const std::string sender = header.sender();
  if (!told_.allows(base::text(sender, " ", text_of(verdict)))) return;
  log_.warn(base::text("dropped a frame from ", sender, " to ", endpoint_, " that ", text_of(verdict),
                       ". Further ones like it are not told for a minute."));
}

}  // namespace vccl
