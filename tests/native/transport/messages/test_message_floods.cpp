// A rank that does not look at its messages for long is not taken for lost, however many there are.
#include <cstdlib>

#include "tests/native/transport/message_traffic.hpp"
#include "tests/native/transport/zmq_library.hpp"

namespace vccl {
namespace {

// More than libzmq keeps of a connection unless it is told otherwise. It would then read no heartbeat either.
constexpr int kMessages = 5'000;

TEST(many_messages_to_a_rank_that_does_not_look) {
  setenv("VCCL_LINK_TIMEOUT", "1", 1);
  FileStore store;
  run_processes(2, [&](int rank) {
    find_zmq_for_tests();
    CommunicatorConfig config = test_config(rank, 2);
    config.host_id = "host" + std::to_string(rank);
    auto c = Communicator::create(store, config);
    std::vector<std::uint32_t> values(kMessages);
    std::vector<Outcome> parts;
    const auto bytes_of = [](std::uint32_t& value) {
      return std::span(reinterpret_cast<std::byte*>(&value), sizeof value);
    };
    if (rank == 1) {
      usleep(4'000'000);  // several times as long as a rank may be silent
    }
    for (std::uint32_t i = 0; i < kMessages; ++i) {
      if (rank == 0) values[i] = i;
      parts.push_back(rank == 0 ? send(*c, 1, 7, bytes_of(values[i]))
                                : receive(*c, 0, 7, bytes_of(values[i])));
    }
    for (Outcome& part : parts) part.get();
    for (std::uint32_t i = 0; i < kMessages; ++i) CHECK_EQ(values[i], i);
  });
}

}  // namespace
}  // namespace vccl

TEST_MAIN
