// Frames between hosts: what one end protects the other end accepts, once and in order, and nothing else.
// VCCL_TEST_SHORT=1 tries fewer random frames.
#include "transport/crypto/frame.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>

#include "tests/native/check.hpp"
#include "transport/error.hpp"

using namespace vccl;

namespace {

using Verdict = FrameOpener::Verdict;
using Bytes = std::vector<std::byte>;

constexpr LinkSecurity kAll[] = {LinkSecurity::encrypt, LinkSecurity::authenticate, LinkSecurity::none};
constexpr LinkSecurity kProtecting[] = {LinkSecurity::encrypt, LinkSecurity::authenticate};

std::string ascending(int first) {
  std::string bytes;
  for (int i = 0; i < 32; ++i) bytes.push_back(static_cast<char>(first + i));
  return bytes;
}

FrameProtection protection(LinkSecurity security, const std::string& purpose = "purpose") {
  return FrameProtection::agree(security, ascending(0), ascending(32), purpose);
}

struct Frame {
  FrameHeader::Bytes header;
  Bytes payload;

  Verdict open_with(FrameOpener& opener, FrameHeader& found) { return opener.open(header, payload, found); }
};

Bytes text_bytes(std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
  return bytes;
}

Frame sealed(FrameSealer& sealer, const Bytes& text, std::uint64_t operation = 9) {
  Frame frame{{}, text};
  frame.header = sealer.seal(FrameKind::block, operation, text, frame.payload.data());
  return frame;
}

std::string hex(std::span<const unsigned char> bytes) {
  std::string text;
  for (const unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

// The expected texts were computed with Python's hmac module.
TEST(keys_are_those_of_hkdf) {
  const Session session(ascending(0), ascending(32), "purpose");
  const FrameKey first = session.key(0), second = session.key(1);
  CHECK_EQ(hex(first.key), "20c452cb6a43aed3d6210cce98673e68a2217898b697d914670eaf4b6ce55a29");
  CHECK_EQ(hex(first.salt), "431d8801");
  CHECK_EQ(hex(second.key), "db9f63dd7853110b86f38009f119afcf78eab130ba0074f23dd6149b11dde332");
  CHECK_EQ(hex(second.salt), "82ad4246");
  CHECK(Session(ascending(0), ascending(32), "other").key(0).key != first.key);
  CHECK(Session(ascending(1), ascending(32), "purpose").key(0).key != first.key);
  CHECK(Session(ascending(32), ascending(0), "purpose").key(0).key != first.key);
  CHECK_THROWS(Session("short", ascending(0), "purpose"), Error);
}

TEST(frames_arrive_in_order) {
  for (const LinkSecurity security : kAll) {
    FrameSealer sealer(protection(security));
    FrameOpener opener(protection(security));
    for (const std::size_t size : {0ul, 1ul, 15ul, 16ul, 17ul, 1025ul, 131'072ul, kMostPayload}) {
      const Bytes text = text_bytes(size);
      Frame frame = sealed(sealer, text, size);
      CHECK_EQ(frame.payload == text, security != LinkSecurity::encrypt || size == 0);
      FrameHeader found;
      CHECK(frame.open_with(opener, found) == Verdict::good);
      CHECK(frame.payload == text);
      CHECK(found.kind == FrameKind::block);
      CHECK_EQ(found.operation, size);
    }
  }
}

TEST(every_bit_of_a_frame_counts) {
  for (const LinkSecurity security : kProtecting) {
    FrameSealer sealer(protection(security));
    FrameOpener opener(protection(security));
    const Frame right = sealed(sealer, text_bytes(40));
    FrameHeader found;
    for (std::size_t bit = 0; bit < 8 * (right.header.size() + right.payload.size()); ++bit) {
      Frame wrong = right;
      std::byte& place = bit / 8 < right.header.size() ? wrong.header[bit / 8]
                                                       : wrong.payload[bit / 8 - right.header.size()];
      place ^= static_cast<std::byte>(1 << bit % 8);
      CHECK(wrong.open_with(opener, found) != Verdict::good);
    }
    for (std::size_t size = 0; size < right.payload.size(); ++size) {
      Frame cut = right;
      cut.payload.resize(size);
      CHECK(cut.open_with(opener, found) == Verdict::stranger);
    }
    Frame unharmed = right;
    CHECK(unharmed.open_with(opener, found) == Verdict::good);
  }
}

TEST(a_frame_counts_once) {
  for (const LinkSecurity security : kAll) {
    FrameSealer sealer(protection(security));
    FrameOpener opener(protection(security));
    const Frame frame = sealed(sealer, text_bytes(100));
    FrameHeader found;
    Frame first = frame, again = frame;
    CHECK(first.open_with(opener, found) == Verdict::good);
    CHECK(again.open_with(opener, found) == Verdict::repeated);
    Frame next = sealed(sealer, text_bytes(100));
    CHECK(next.open_with(opener, found) == Verdict::good);
  }
}

TEST(a_gap_is_an_error) {
  for (const LinkSecurity security : kAll) {
    for (const std::uint64_t first : {std::uint64_t{5}, kEpoch - 1}) {
      FrameSealer sealer(protection(security), first);
      FrameOpener opener(protection(security), first);
      sealed(sealer, text_bytes(10));
      Frame second = sealed(sealer, text_bytes(10));
      FrameHeader found;
      try {
        second.open_with(opener, found);
        throw check::Failure("no gap was noticed");
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::protocol);
        CHECK_EQ(std::string(error.what()), "frame " + std::to_string(first + 1) + " where frame " +
                                                std::to_string(first) + " comes next: frames were lost");
      }
    }
  }
}

TEST(other_directions_connections_and_groups_have_other_keys) {
  for (const LinkSecurity security : kProtecting) {
    FrameSealer sealer(protection(security, "blocks|g|0|1"));
    FrameOpener opener(protection(security, "blocks|g|1|0"));
    Frame frame = sealed(sealer, text_bytes(100));
    FrameHeader found;
    CHECK(frame.open_with(opener, found) == Verdict::stranger);
  }
  // Without protection a token tells connections apart.
  FrameSealer sealer(FrameProtection::agree(LinkSecurity::none, "", ascending(0), ""));
  FrameOpener opener(FrameProtection::agree(LinkSecurity::none, "", ascending(1), ""));
  Frame frame = sealed(sealer, text_bytes(100));
  FrameHeader found;
  CHECK(frame.open_with(opener, found) == Verdict::stranger);
}

TEST(keys_change_with_the_epoch) {
  for (const LinkSecurity security : kProtecting) {
    FrameSealer sealer(protection(security), kEpoch - 2);
    FrameOpener opener(protection(security), kEpoch - 2);
    const Bytes text = text_bytes(64);
    for (int i = 0; i < 4; ++i) {
      Frame frame = sealed(sealer, text);
      FrameHeader found;
      // What pretends to be of the next epoch does not make the opener forget the key of this one.
      Frame forged = frame;
      const std::uint64_t number = 2 * kEpoch - 1;
      std::memcpy(forged.header.data() + 1, &number, sizeof number);
      CHECK(forged.open_with(opener, found) == Verdict::stranger);
      CHECK(frame.open_with(opener, found) == Verdict::good);
      CHECK(frame.payload == text);
      CHECK_EQ(found.number, kEpoch - 2 + static_cast<std::uint64_t>(i));
    }
  }
}

TEST(a_number_is_never_used_twice) {
  FrameSealer sealer(protection(LinkSecurity::encrypt), (std::uint64_t{1} << 62) - 1);
  sealed(sealer, text_bytes(1));
  CHECK_THROWS(sealed(sealer, text_bytes(1)), Error);
  CHECK_THROWS(sealed(sealer, text_bytes(1)), Error);
}

TEST(what_is_too_long_or_too_short_is_malformed) {
  FrameOpener opener(protection(LinkSecurity::encrypt));
  FrameHeader found;
  Bytes payload(kMostPayload + 1);
  const Bytes header(FrameHeader::kBytes + 1, std::byte{1});
  for (std::size_t size = 0; size <= header.size(); ++size) {
    if (size == FrameHeader::kBytes) continue;
    CHECK(opener.open(std::span(header).first(size), std::span(payload).first(8), found) ==
          Verdict::malformed);
  }
  CHECK(opener.open(std::span(header).first(FrameHeader::kBytes), payload, found) == Verdict::malformed);
}

// Random bytes, and frames of the peer that were changed, cut, lengthened, repeated or mixed, between frames
// that are right. Each is in memory of exactly its length, so that the address sanitizer sees every step
// beyond it. Only what is right is accepted, and all of that.
TEST(random_and_mutated_frames) {
  const char* text = std::getenv("VCCL_TEST_SHORT");
  const bool is_short = text && *text && std::string(text) != "0";
  const int rounds = (is_short ? 200'000 : 10'000'000) / 2;
  std::mt19937_64 random(17);
  for (const LinkSecurity security : kProtecting) {
    FrameSealer sealer(protection(security)), other(protection(security, "other"));
    FrameOpener opener(protection(security));
    Frame last, foreign = sealed(other, text_bytes(32));
    for (int round = 0; round < rounds; ++round) {
      if (round % 64 == 0) {
        last = sealed(sealer, text_bytes(random() % 200), static_cast<std::uint64_t>(round));
        const Bytes expected = text_bytes(last.payload.size());
        Frame right = last;
        FrameHeader found;
        CHECK(right.open_with(opener, found) == Verdict::good);
        CHECK(right.payload == expected);
        CHECK_EQ(found.operation, static_cast<std::uint64_t>(round));
      }
      // The frame that comes next, changed: its number is right unless the change hits that.
      FrameSealer ahead(protection(security), static_cast<std::uint64_t>(round / 64) + 1);
      const bool fresh = round % 8 == 0;
      const Frame& base = random() % 16 == 0 ? foreign : last;
      Bytes header(base.header.begin(), base.header.end()), payload = base.payload;
      if (fresh) {
        const Frame next = sealed(ahead, payload);
        header.assign(next.header.begin(), next.header.end());
        payload = next.payload;
      }
      bool changed = false;
      switch (random() % 5) {
        case 0:
          header.resize(random() % 64);
          for (std::byte& byte : header) byte = static_cast<std::byte>(random());
          changed = true;
          break;
        case 1:
          header[random() % header.size()] ^= static_cast<std::byte>(1 + random() % 255);
          changed = true;
          break;
        case 2:
          if (payload.empty()) break;
          payload[random() % payload.size()] ^= static_cast<std::byte>(1 + random() % 255);
          changed = true;
          break;
        case 3:
          payload.resize(payload.size() + 1 + random() % 16);
          changed = true;
          break;
        default:
          header.resize(random() % FrameHeader::kBytes);
          changed = true;
      }
      if (fresh && !changed) continue;  // that would be right
      header.shrink_to_fit();
      payload.shrink_to_fit();
      FrameHeader found;
      CHECK(opener.open(header, payload, found) != Verdict::good);
    }
  }
}

}  // namespace

TEST_MAIN
