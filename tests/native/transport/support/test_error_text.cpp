// Texts that are cut, and texts that are none: what is left is UTF-8.
#include "transport/support/error_text.hpp"

#include <cstring>

#include "tests/native/transport/harness.hpp"
#include "transport/state/recorded_failure.hpp"

namespace vccl {
namespace {

const std::string kE = "\xc3\xa9", kEuro = "\xe2\x82\xac", kFace = "\xf0\x9f\x99\x82";
const std::string kNone = "\xef\xbf\xbd";  // U+FFFD

std::string cut(const std::string& text, std::size_t most) {
  return std::string(cut_text(text, most));
}

TEST(texts_are_cut_between_characters) {
  CHECK_EQ(cut("abc", 3), "abc");
  CHECK_EQ(cut("abc", 2), "ab");
  CHECK_EQ(cut("abc", 0), "");
  for (const std::string& character : {kE, kEuro, kFace}) {
    const std::string text = "ab" + character + "c";
    for (std::size_t most = 2; most < 2 + character.size(); ++most) CHECK_EQ(cut(text, most), "ab");
    CHECK_EQ(cut(text, 2 + character.size()), "ab" + character);
  }
  // No text: cut where it was asked for.
  CHECK_EQ(cut(std::string(8, '\x80'), 6), std::string(6, '\x80'));
}

TEST(what_is_no_text_is_replaced) {
  const std::string good = "a" + kE + kEuro + kFace + "\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf";
  CHECK_EQ(valid_text(good), good);
  CHECK_EQ(valid_text(""), "");
  CHECK_EQ(valid_text("a\xc3"), "a" + kNone);
  CHECK_EQ(valid_text("\xc3z"), kNone + "z");
  CHECK_EQ(valid_text("\x80\xff"), kNone + kNone);
  CHECK_EQ(valid_text("\xc0\x80"), kNone + kNone);                    // too long a form of 0
  CHECK_EQ(valid_text("\xe0\x80\x80"), kNone + kNone + kNone);        // the same
  CHECK_EQ(valid_text("\xed\xa0\x80"), kNone + kNone + kNone);        // half of a pair of UTF-16
  CHECK_EQ(valid_text("\xf4\x90\x80\x80").size(), 4 * kNone.size());  // beyond Unicode
  CHECK_EQ(valid_text("\xf5\x80\x80\x80").size(), 4 * kNone.size());
  CHECK_EQ(valid_text(kEuro.substr(0, 2) + "x"), kNone + kNone + "x");
}

TEST(errors_have_texts_whatever_they_are_made_of) {
  CHECK_EQ(std::string(Error(ErrorCode::system, "a\xff").what()), "a" + kNone);
}

TEST(a_failure_that_does_not_fit_its_record) {
  for (std::size_t shift = 0; shift < 4; ++shift) {
    FailureRecord record{};
    std::string text(FailureRecord::kMaxText - shift, 'x');
    text += kFace;
    CHECK(RecordedFailure(record).record(ErrorCode::mismatch, text));
    CHECK_EQ(std::string(RecordedFailure(record).error().what()),
             std::string(FailureRecord::kMaxText - shift, 'x'));
  }
  // A hostile peer's record.
  FailureRecord record{};
  std::memset(record.text, 0xc3, sizeof record.text);
  record.length = 2;
  record.code = ErrorCode::mismatch;
  record.state = FailureRecord::set;
  CHECK_EQ(std::string(RecordedFailure(record).error().what()), kNone + kNone);
}

}  // namespace
}  // namespace vccl

TEST_MAIN
