#include "transport/remote/block_stream.hpp"

#include "base/text.hpp"

namespace vccl {
namespace {

// How long the peer's last words may be behind the end of the stream.
constexpr Milliseconds kLastWordsMayCome{2'000};

static_assert(kMostPayload >= Communicator::kBlockBytes, "every block fits into a frame");

std::string text_of_header(const FrameHeader::Bytes& header) {
  return {reinterpret_cast<const char*>(header.data()), header.size()};
}

}  // namespace

BlockSender::BlockSender(const std::string& endpoint, FrameProtection protection, Milliseconds silence)
    : socket_(ZmqSocket::Kind::push, silence), sealer_(std::move(protection)) {
  socket_.connect(endpoint, "");
  socket_.send(text_of_header(sealer_.seal(FrameKind::greeting, 0, {}, nullptr)));
}

BlockSender::Prepared BlockSender::prepare(std::uint64_t sequence, std::span<const std::byte> block,
                                           std::byte* slot) {
  const FrameHeader::Bytes header = sealer_.seal(FrameKind::block, sequence, block, slot);
  return {text_of_header(header), sealer_.encrypts() ? slot : block.data(), block.size()};
}

bool BlockSender::send(const Prepared& block) {
  return socket_.send(block.header, block.data, block.bytes);
}

bool BlockSender::is_broken() {
  if (!ended_ && socket_.disconnected()) ended_ = Clock::now();
  return ended_ && Clock::now() - *ended_ >= kLastWordsMayCome;
}

BlockReceiver::BlockReceiver(const LinkSettings& settings, const Log& log)
    : socket_(ZmqSocket::Kind::pull, settings.silence),
      endpoint_(socket_.bind(settings.address, settings.ports, 1, log)),
      log_(log) {}

std::optional<RemoteBlock> BlockReceiver::receive() {
  if (!opener_) return std::nullopt;
  while (auto received = socket_.receive()) {
    ZmqMessage& first = received->control;
    std::span<std::byte> payload;
    if (received->payload) payload = received->payload->bytes();
    FrameHeader header;
    const auto verdict = received->excess ? FrameOpener::Verdict::malformed
                                          : opener_->open({first.data(), first.size()}, payload, header);
    if (verdict != FrameOpener::Verdict::good) {
      tell_of(first, verdict);
    } else if (header.kind == FrameKind::greeting) {
      greeted_ = true;
      socket_.shut();
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
