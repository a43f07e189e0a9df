// A ring link whose neighbour is played by the test: what it says wrong is an error that names everything.
#include "transport/remote/remote_links.hpp"

#include <thread>

#include "tests/native/transport/harness.hpp"
#include "tests/native/transport/zmq_library.hpp"
#include "transport/host/machine.hpp"
#include "transport/remote/control.hpp"

namespace vccl {
namespace {

using msgpack::Map;
using msgpack::Value;

const Milliseconds kLong{30'000};

/// What rank 0 makes of `first`, the first message of rank 1, its left neighbour on another host.
Error error_after(const std::string& first) {
  find_zmq_for_tests();
  MemoryStore store;
  Listener listener;
  Group group;
  group.name = "test";
  group.size = 2;
  const Deadline deadline = Deadline::in(kLong);
  const RankRecord record{0, machine_key(), "", getpid(), pid_namespace(), listener.name()};
  group.host = form_host_group(store, {record}, 0, {}, listener, deadline);
  const CurrentOperation operation(group, deadline);
  FailureChannel failures(group);
  RemoteLinks links(group, operation, failures);
  Error error(ErrorCode::system, "");
  const CommunicatorConfig config = test_config(0, 2);
  Meeting meeting(store, config, deadline);
  std::thread rank(
      [&] { error = error_of([&] { links.connect(meeting, 1, -1, "127.0.0.1", LinkSecurity::encrypt); }); });
  const Value published = msgpack::decode(store.get("link/0", deadline));
  ZmqSocket neighbour;
  neighbour.connect(published.at("endpoint").as_string(), published.at("key").as_string());
  neighbour.send(first);
  rank.join();
  CHECK_EQ(std::string(failures.error().what()), error.what());
  return error;
}

TEST(what_no_neighbour_says) {
  const auto refused = [](const std::string& first, const std::string& why) {
    const Error error = error_after(first);
    CHECK(error.code() == ErrorCode::protocol);
    CHECK_EQ(std::string(error.what()),
             "rank 1 sent rank 0 what no rank sends, in the meeting of group test: " + why);
  };
  refused("", "malformed control message: cut off in a number");
  refused(encode_record({}), "malformed control message: the key \"t\" is missing");
  refused(control_message("hello"), "malformed control message: the key \"token\" is missing");
  refused(control_message("hello", {{"token", "guessed"}}), "a wrong token");
  refused(control_message("begin"), "something before its greeting");
  refused(msgpack::encode(Map{{"v", 77}, {"t", "hello"}}),
          "rank 1 speaks version 77 to ranks that speak version " + std::to_string(kProtocolVersion) +
              ": all ranks must run the same version of vccl");
}

// A neighbour that fails after it has read this rank's greeting does not come to answer it.
TEST(last_words_may_take_the_place_of_the_greeting) {
  const int code = static_cast<int>(ErrorCode::system);
  const Error error = error_after(control_message("fail", {{"code", code}, {"text", "no memory is left"}}));
  CHECK(error.code() == ErrorCode::system);
  CHECK_EQ(std::string(error.what()), "no memory is left");
}

TEST(a_failure_that_the_neighbour_tells_is_passed_on_as_it_is) {
  MemoryStore store;
  find_zmq_for_tests();
  run_threads(2, [&](int rank) {
    CommunicatorConfig config = test_config(rank, 2);
    config.host_id = rank ? "b" : "a";
    const auto c = Communicator::create(store, config);
    if (rank == 0) c->fail(ErrorCode::protocol, "one\xff's own text");
    const Error error = error_of([&] {
      Operation operation(*c, {}, {}, Deadline::in(kLong));
      operation.finish();
    });
    CHECK(error.code() == ErrorCode::protocol);
    CHECK_EQ(std::string(error.what()), "one\xef\xbf\xbd's own text");
  });
}

}  // namespace
}  // namespace vccl

TEST_MAIN
