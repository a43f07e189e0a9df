// What is sent on a link is kept until the other end has confirmed it, and no more than that.
#include "transport/connections/journal.hpp"

#include "tests/native/check.hpp"
#include "tests/native/transport/harness.hpp"
#include "tests/native/transport/zmq_library.hpp"

namespace vccl {
namespace {

std::string numbered(int number) {
  return control_message("begin", {{"n", number}, {"heard", 3}});
}

Journal with(int messages, std::size_t most = 10) {
  Journal journal(most);
  for (int i = 0; i < messages; ++i) journal.keep(numbered(i), std::nullopt);
  return journal;
}

void check_kept(const Journal& journal, int first, int end) {
  CHECK_EQ(journal.unconfirmed().size(), static_cast<std::size_t>(end - first));
  for (const Journal::Message& message : journal.unconfirmed()) CHECK_EQ(message.control, numbered(first++));
}

TEST(a_message_is_kept_until_it_is_confirmed) {
  Journal journal = with(4);
  check_kept(journal, 0, 4);
  journal.confirm(0);
  check_kept(journal, 0, 4);
  journal.confirm(3);
  check_kept(journal, 3, 4);
  journal.confirm(3);
  check_kept(journal, 3, 4);
  CHECK_EQ(journal.confirmed(), 3u);
  journal.confirm(4);
  check_kept(journal, 4, 4);
  journal.keep(numbered(4), std::nullopt);
  check_kept(journal, 4, 5);
}

TEST(a_message_that_is_sent_again_has_a_new_confirmation) {
  const msgpack::Map fields = with(1).unconfirmed().front().renewed(7);
  CHECK(fields.at("heard") == msgpack::Value(7));
  CHECK(fields.at("n") == msgpack::Value(0));
}

TEST(what_is_taken_back_was_not_sent) {
  Journal journal = with(4);
  journal.confirm(1);
  CHECK_EQ(journal.take_back().size(), 3u);
  check_kept(journal, 1, 1);
  CHECK_THROWS(journal.confirm(2), Error);
  journal.keep(numbered(1), std::nullopt);
  journal.confirm(2);
}

TEST(messages_of_the_peer_are_counted) {
  Journal journal(1);
  CHECK_EQ(journal.heard(), 0u);
  for (int i = 0; i < 100; ++i) journal.hear();
  CHECK_EQ(journal.heard(), 100u);
}

TEST(a_wrong_confirmation_is_a_breach) {
  for (const std::uint64_t wrong : {std::uint64_t{1}, std::uint64_t{5}, ~std::uint64_t{0}}) {
    Journal journal = with(4);
    journal.confirm(2);
    const Error error = error_of([&] { journal.confirm(wrong); });
    CHECK(error.code() == ErrorCode::protocol);
    check_contains(error.what(), "the confirmation of " + std::to_string(wrong) + " messages, of 4");
    check_kept(journal, 2, 4);
  }
}

TEST(a_peer_that_confirms_nothing_is_noticed) {
  Journal journal = with(10);
  CHECK(error_of([&] { journal.keep(numbered(10), std::nullopt); }).code() == ErrorCode::protocol);
  journal.confirm(1);
  journal.keep(numbered(10), std::nullopt);
  check_kept(journal, 1, 11);
}

// A payload is not copied, and is given back when nobody can need it any more.
TEST(a_payload_is_shared) {
  find_zmq_for_tests();
  static int given_back;
  given_back = 0;
  std::vector<std::byte> bytes(100'000, std::byte{7});
  ZmqMessage payload(bytes.data(), bytes.size(), +[](void*, void*) { ++given_back; }, nullptr);
  Journal journal(10);
  journal.keep(numbered(0), payload.share());
  CHECK(journal.unconfirmed().front().payload->data() == bytes.data());
  CHECK_EQ(journal.unconfirmed().front().payload->size(), bytes.size());
  payload = ZmqMessage();
  CHECK_EQ(given_back, 0);
  journal.confirm(1);
  CHECK_EQ(given_back, 1);
}

TEST(what_is_forgotten_may_still_be_confirmed) {
  Journal journal = with(4);
  journal.forget();
  check_kept(journal, 4, 4);
  journal.confirm(4);
  CHECK_THROWS(journal.confirm(5), Error);
}

}  // namespace
}  // namespace vccl

TEST_MAIN
