// Questions to ranks on other hosts, and their answers.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/native/transport/harness.hpp"
#include "tests/native/transport/zmq_library.hpp"
#include "transport/questions/answerer.hpp"
#include "transport/support/protocol.hpp"

namespace vccl {
namespace {

constexpr Milliseconds kLong{20'000}, kShort{300};

LinkSettings loopback() {
  find_zmq_for_tests();
  LinkSettings settings;
  settings.address = "127.0.0.1";
  settings.host = "here";
  return settings;
}

AnsweringRank at(const Answerer& answerer) {
  return answering_rank(0, answerer.record());
}

std::vector<std::string> echo(std::string_view question) {
  return {std::string(question), "and more"};
}

TEST(every_question_gets_its_answer) {
  const Answerer first(loopback(), 2, echo, Log());
  const Answerer second(
      loopback(), 2, [](std::string_view) { return std::vector<std::string>{"no"}; }, Log());
  const auto answers = ask({{at(first), "one"}, {at(second), "two"}, {at(first), "three"}}, kLong);
  CHECK_EQ(answers.size(), std::size_t{3});
  CHECK(answers[0] == (std::vector<std::string>{"one", "and more"}));
  CHECK(answers[1] == std::vector<std::string>{"no"});
  CHECK(answers[2] == (std::vector<std::string>{"three", "and more"}));
}

TEST(an_answer_may_have_no_parts_or_long_ones) {
  const Answerer none(loopback(), 1, [](std::string_view) { return std::vector<std::string>(); }, Log());
  const std::vector<std::string> parts(70, std::string(kMostInPart, 'x'));
  const Answerer many(loopback(), 1, [&](std::string_view) { return parts; }, Log());
  const auto answers = ask({{at(none), ""}, {at(many), ""}}, kLong);
  CHECK(answers[0] && answers[0]->empty());
  CHECK(answers[1] && *answers[1] == parts);
}

TEST(who_does_not_know_the_token_gets_no_answer) {
  std::atomic<int> asked{0};
  const Answerer answerer(
      loopback(), 1,
      [&](std::string_view) {
        ++asked;
        return std::vector<std::string>{"secret"};
      },
      Log());
  auto wrong = at(answerer);
  wrong.token = "guessed";
  CHECK(!ask({{wrong, "?"}}, kShort)[0]);
  CHECK_EQ(asked.load(), 0);
  // Others are answered all the same.
  CHECK(ask({{at(answerer), "?"}}, kLong)[0].has_value());
}

TEST(messages_of_strangers_do_not_end_the_answers) {
  const Answerer answerer(loopback(), 1, echo, Log());
  ZmqSocket stranger(ZmqSocket::Kind::dealer);
  stranger.connect(answerer.record().endpoint, answerer.record().key, true);
  for (const std::string& message :
       {std::string(), std::string("\xc1"), std::string(1000, '\x81'), control_message("question"),
        control_message("question", {{"token", answerer.record().token}}),
        control_message("question", {{"token", answerer.record().token}, {"question", 3}})}) {
    stranger.post({}, message);
  }
  CHECK(ask({{at(answerer), "one"}}, kLong)[0].has_value());
}

// The loop ends by the deadline. That nobody waits for longer is what the test's own limit shows.
TEST(who_does_not_answer_is_not_waited_for_long) {
  std::atomic<bool> over{false};
  const Answerer slow(
      loopback(), 1,
      [&](std::string_view) {
        while (!over) std::this_thread::sleep_for(Milliseconds(1));
        return std::vector<std::string>{"late"};
      },
      Log());
  const Answerer quick(loopback(), 1, echo, Log());
  const auto answers = ask({{at(slow), ""}, {at(quick), ""}}, kShort);
  over = true;
  CHECK(!answers[0]);
  CHECK(answers[1].has_value());
}

TEST(nobody_listens_there_any_more) {
  AnsweringRank rank;
  {
    const Answerer answerer(loopback(), 1, echo, Log());
    rank = at(answerer);
  }
  CHECK(!ask({{rank, ""}}, kLong)[0]);
}

TEST(who_asks_learns_that_the_rank_has_gone) {
  std::atomic<bool> answers{false};
  auto answerer = std::make_unique<Answerer>(
      loopback(), 2,
      [&](std::string_view) {
        answers = true;
        std::this_thread::sleep_for(Milliseconds(50));
        return std::vector<std::string>();
      },
      Log());
  const auto rank = at(*answerer);
  std::thread first([&] { (void)ask({{rank, "first"}}, kLong); });
  while (!answers) std::this_thread::sleep_for(Milliseconds(1));
  // Nobody answers the second question any more. Whoever asks does not wait for an hour.
  std::thread second([&] { (void)ask({{rank, "second"}}, std::chrono::hours(1)); });
  answerer.reset();
  first.join();
  second.join();
}

TEST(many_ask_at_the_same_time) {
  const Answerer answerer(loopback(), 8, echo, Log());
  std::atomic<int> answered{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 5; ++round) {
        const auto text = std::to_string(i) + "/" + std::to_string(round);
        const auto answers = ask({{at(answerer), text}}, kLong);
        if (answers[0] && answers[0]->front() == text) ++answered;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(answered.load(), 40);
}

}  // namespace
}  // namespace vccl

TEST_MAIN
