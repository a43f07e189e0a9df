// Links between hosts under each value of VCCL_LINK_SECURITY, with and without libcrypto, and strangers at
// the port of a stream of blocks.
#include "transport/connections/link_security.hpp"

#include "tests/native/transport/captured.hpp"
#include "tests/native/transport/harness.hpp"
#include "tests/native/transport/rounds.hpp"
#include "tests/native/transport/zmq_library.hpp"
#include "transport/connections/block_stream.hpp"
#include "transport/connections/zmq_socket.hpp"
#include "transport/crypto/crypto_api.hpp"

namespace vccl {
namespace {

const Milliseconds kLong{30'000};

/// Makes ranks on two hosts with these variables, and calls body(rank, store).
void with_variables(const std::vector<std::vector<std::pair<std::string, std::string>>>& variables,
                    const std::function<void(int, Store&)>& body) {
  find_zmq_for_tests();
  FileStore store;
  run_processes(static_cast<int>(variables.size()), [&](int rank) {
    for (const auto& [name, value] : variables[static_cast<std::size_t>(rank)])
      setenv(name.c_str(), value.c_str(), 1);
    body(rank, store);
  });
}

CommunicatorConfig on_host_of_its_own(int rank, int size) {
  CommunicatorConfig config = test_config(rank, size);
  config.host_id = std::to_string(rank);
  return config;
}

void pass_blocks(int rank, int size, Store& store) {
  TestRegion region;
  CommunicatorConfig config = on_host_of_its_own(rank, size);
  config.regions = {region.region()};
  check_rounds(*Communicator::create(store, config), region);
}

TEST(blocks_arrive_under_every_security) {
  for (const std::string security : {"encrypt", "authenticate", "none", ""}) {
    with_variables({{{"VCCL_LINK_SECURITY", security}}, {{"VCCL_LINK_SECURITY", security}}},
                   [&](int rank, Store& store) { pass_blocks(rank, 2, store); });
  }
}

// A rank that lacks libcrypto says so once, whatever VCCL_DEBUG is, and then libzmq encrypts.
TEST(blocks_arrive_where_a_rank_lacks_libcrypto) {
  const std::pair<std::string, std::string> none{"VCCL_CRYPTO_LIBRARY", "none"};
  for (const std::string security : {"encrypt", "authenticate"}) {
    const std::pair<std::string, std::string> chosen{"VCCL_LINK_SECURITY", security};
    with_variables({{chosen, none}, {chosen}, {chosen, none}}, [&](int rank, Store& store) {
      std::string text;
      {
        Captured captured;
        pass_blocks(rank, 3, store);
        pass_blocks(rank, 3, store);
        text = captured.text();
      }
      const std::string why = "libcrypto could not be loaded, so libzmq encrypts the data between hosts";
      if (rank == 1) {
        CHECK_EQ(text, "");
      } else {
        check_contains(text, why);
        check_contains(text, "VCCL_CRYPTO_LIBRARY is \"none\"");
        CHECK_EQ(text.find(why), text.rfind(why));
      }
    });
  }
}

TEST(ranks_that_differ_are_told_so) {
  with_variables({{{"VCCL_LINK_SECURITY", "none"}}, {{"VCCL_LINK_SECURITY", "authenticate"}}},
                 [&](int rank, Store& store) {
                   const Error error =
                       error_of([&] { Communicator::create(store, on_host_of_its_own(rank, 2)); });
                   const std::string text = error.what();
                   check_contains(text, "VCCL_LINK_SECURITY is none for rank 0 and authenticate for rank 1");
                   check_contains(text, "set the same value on all ranks");
                 });
}

TEST(a_library_that_cannot_be_loaded_is_an_error) {
  with_variables({{{"VCCL_CRYPTO_LIBRARY", "/nonexistent/libcrypto.so"}}}, [](int, Store&) {
    const Error error = error_of([] { crypto_api(); });
    CHECK(error.code() == ErrorCode::invalid);
    check_contains(error.what(), "VCCL_CRYPTO_LIBRARY is \"/nonexistent/libcrypto.so\"; allowed are");
  });
}

TEST(links_need_curve_unless_they_shall_not_be_protected) {
  find_zmq_for_tests();
  auto& api = const_cast<ZmqApi&>(zmq_api());
  const auto has = api.has;
  api.has = [](const char*) { return 0; };
  for (const LinkSecurity security : {LinkSecurity::encrypt, LinkSecurity::authenticate}) {
    const Error error = error_of([&] { check_link_security(security, Log()); });
    CHECK(error.code() == ErrorCode::unsupported);
    check_contains(error.what(), "has no CURVE");
    check_contains(error.what(), "VCCL_LINK_SECURITY=none");
  }
  check_link_security(LinkSecurity::none, Log());
  api.has = has;
}

FrameProtection shared(LinkSecurity security) {
  const std::string contribution(Session::kContribution, 'c');
  return FrameProtection::agree(security, contribution, contribution, "test");
}

/// Sends frames as somebody who has connected to the port.
void send_as_stranger(ZmqSocket& stranger, const std::vector<std::pair<std::string, std::size_t>>& frames) {
  for (const auto& [header, bytes] : frames) {
    ZmqMessage payload(std::string(bytes, 'x'));
    CHECK(stranger.post({}, header, &payload) == ZmqSocket::Sent::yes);
  }
}

TEST(strangers_are_dropped_and_blocks_arrive) {
  find_zmq_for_tests();
  for (const LinkSecurity security :
       {LinkSecurity::encrypt, LinkSecurity::authenticate, LinkSecurity::none}) {
    Captured captured;
    BlockReceiver receiver({.address = "127.0.0.1"}, Log(LogLevel::warn, 3, "g"));
    receiver.accept(shared(security));
    ZmqSocket stranger(ZmqSocket::Kind::push), huge(ZmqSocket::Kind::push);
    stranger.connect(receiver.endpoint(), "");
    huge.connect(receiver.endpoint(), "");
    // What looks like a block, what is cut off, and what libzmq itself refuses.
    const std::string likely = std::string(1, '\x02') + std::string(FrameHeader::kBytes - 1, '\0');
    send_as_stranger(stranger,
                     {{likely, 100}, {"", 0}, {likely, 0}, {likely.substr(1), 9}, {likely, kMostPayload}});
    send_as_stranger(huge, {{likely, 64 * kMostPayload}});
    const Deadline deadline = Deadline::in(kLong);
    while (captured.text().find("that is malformed") == std::string::npos) {
      CHECK(!receiver.receive());
      CHECK(!deadline.passed());
      usleep(1000);
    }
    BlockSender sender(receiver.endpoint(), shared(security));
    std::vector<std::byte> block(100'000), slot(block.size());
    for (int number = 0; number < 20; ++number) {
      for (std::size_t i = 0; i < block.size(); ++i)
        block[i] = pattern(0, 1, i + static_cast<std::size_t>(number));
      CHECK(sender.send(sender.prepare(7, block, slot.data())));
      send_as_stranger(stranger, {{likely, 100}});
      std::optional<RemoteBlock> received;
      while (!(received = receiver.receive())) {
        CHECK(!deadline.passed());
        usleep(100);
      }
      CHECK_EQ(received->sequence, 7u);
      const std::span<std::byte> bytes = received->bytes.bytes();
      CHECK(std::equal(bytes.begin(), bytes.end(), block.begin(), block.end()));
    }
    // One line for each kind and source.
    const std::string text = captured.text(), kind = "that is not from a rank of the group";
    check_contains(text, "[vccl] rank 3 (g): dropped a frame from 127.0.0.1 to tcp://127.0.0.1:");
    check_contains(text, kind);
    CHECK_EQ(text.find(kind), text.rfind(kind));
  }
}

}  // namespace
}  // namespace vccl

TEST_MAIN
