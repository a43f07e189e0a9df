// Shared memory, sockets and processes: what the ranks of a host hand to each other.
#include "transport/bootstrap/unix_socket.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <array>

#include <optional>
#include <thread>

#include "base/cores.hpp"
#include "tests/native/transport/meeting/doors.hpp"
#include "tests/native/transport/odd_files.hpp"
#include "transport/interruption_check.hpp"
#include "transport/system/interface.hpp"
#include "transport/system/machine.hpp"
#include "transport/system/peer_process.hpp"
#include "transport/variables.hpp"

namespace vccl {
namespace {

const Milliseconds kLong{10'000};

int open_files() {
  int count = 0;
  for (auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) count += entry.is_symlink();
  return count;
}

TEST(shared_memory_is_sealed_and_mapped_once) {
  FileDescriptor fd = make_shared_memory("test", 8192);
  CHECK(ftruncate(fd.get(), 4096) != 0);
  CHECK(ftruncate(fd.get(), 16384) != 0);
  auto first = map_shared_memory(fd.get(), 8192);
  FileDescriptor copy(dup(fd.get()));
  auto second = map_shared_memory(copy.get(), 8192);
  CHECK(first == second);
  CHECK_EQ(first->size(), 8192u);
  first->base()[8191] = std::byte{7};
  first.reset();
  second.reset();
  CHECK(map_shared_memory(fd.get(), 8192)->base()[8191] == std::byte{7});
}

TEST(what_no_rank_makes_is_not_mapped) {
  for (const OddFile& odd : odd_files()) {
    const Error error = error_of([&] { map_shared_memory(odd.fd.get(), odd.announced); });
    CHECK(error.code() == ErrorCode::protocol);
    check_contains(error.what(), odd.complaint);
  }
}

TEST(the_kind_of_a_file_is_seen_before_it_is_opened) {
  const auto look = [](const std::string& path) {
    const FileDescriptor found(open(path.c_str(), O_PATH | O_CLOEXEC));
    return open_announced_memory(path, identify_shared_memory(found.get()));
  };
  const FileDescriptor fd = make_shared_memory("test", 4096);
  look("/proc/self/fd/" + std::to_string(fd.get()));
  CHECK(error_of([&] { look("/proc/self/exe"); }).code() == ErrorCode::protocol);
}

TEST(descriptors_travel) {
  const int before = open_files();
  {
    Listener listener;
    Channel client = Channel::connect(listener.name(), Deadline::in(kLong));
    Channel server = accept_one(listener);
    CHECK_EQ(client.peer_pid(), getpid());
    CHECK_EQ(server.peer_pid(), getpid());
    FileDescriptor memory = make_shared_memory("test", 4096);
    std::vector<int> many(Channel::kMaxDescriptors, memory.get());
    client.send("hello", many, Deadline::in(kLong));
    client.send(std::string(Channel::kMaxPacket, 'x'), {}, Deadline::in(kLong));
    Channel::Packet packet = server.receive(Deadline::in(kLong));
    CHECK_EQ(packet.bytes, "hello");
    CHECK_EQ(packet.descriptors.size(), many.size());
    for (const FileDescriptor& fd : packet.descriptors) CHECK_EQ(fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
    CHECK_EQ(server.receive(Deadline::in(kLong)).bytes.size(), Channel::kMaxPacket);
    CHECK(error_of([&] { server.receive(Deadline::in(Milliseconds(20))); }).code() == ErrorCode::timeout);
    CHECK(!server.ready() && listener.accept(1).empty());
    many.push_back(memory.get());
    CHECK(error_of([&] { client.send("x", many, Deadline::in(kLong)); }).code() == ErrorCode::invalid);
  }
  CHECK_EQ(open_files(), before);
}

TEST(a_hung_up_peer_is_seen) {
  Listener listener;
  auto client = std::make_unique<Channel>(Channel::connect(listener.name(), Deadline::in(kLong)));
  Channel server = accept_one(listener);
  client.reset();
  CHECK(error_of([&] { server.receive(Deadline::in(kLong)); }).code() == ErrorCode::bootstrap);
  CHECK(error_of([&] { server.send("x", {}, Deadline::in(kLong)); }).code() == ErrorCode::bootstrap);
  CHECK(error_of([] { Channel::connect("vccl-nobody-listens-here", Deadline::in(kLong)); }).code() ==
        ErrorCode::bootstrap);
}

// As root only, who alone can become somebody else; otherwise there is no foreign user to test with.
TEST(a_foreign_user_is_refused) {
  if (geteuid() != 0) return;
  Listener listener;
  // Our own listener seen by a foreign user: refused by the one who connects.
  {
    Processes stranger(1, [&](int) {
      become_another_user();
      const Error error = error_of([&] { Channel::connect(listener.name(), Deadline::in(kLong)); });
      CHECK(error.code() == ErrorCode::bootstrap);
      check_contains(error.what(), "belongs to user 0, not to user 65534");
    });
    CHECK_EQ(stranger.wait()[0], 0);
  }
  // And refused by the one who listens, even if the stranger does not look: only our own user gets through.
  Processes strangers(2, [&](int) {
    become_another_user();
    const FileDescriptor socket = connect_as_stranger(listener.name());
    pollfd hung_up{socket.get(), POLLIN, 0};
    CHECK_EQ(poll(&hung_up, 1, -1), 1);
    char byte;
    CHECK(recv(socket.get(), &byte, 1, 0) <= 0);
  });
  while (listener.turned_away() < 3) {
    wait_for_any(listener, {}, Deadline::in(kLong));
    CHECK(listener.accept(1).empty());
  }
  strangers.check_ends();
  CHECK_EQ(listener.turned_away_text(), "closed 3 connections of other users (uid 65534)");
  Channel own = Channel::connect(listener.name(), Deadline::in(kLong));
  CHECK_EQ(accept_one(listener).peer_pid(), getpid());
}

// The kernel refuses to let a user have more descriptors under way than RLIMIT_NOFILE, except for root.
TEST(too_many_descriptors_under_way_are_waited_for) {
  run_processes(1, [](int) {
    if (geteuid() == 0) become_another_user();
    const rlimit few{64, 64};
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    Listener listener;
    std::optional<Channel> full = Channel::connect(listener.name(), Deadline::in(kLong));
    std::optional<Channel> never_reads = accept_one(listener);
    Channel sender = Channel::connect(listener.name(), Deadline::in(kLong));
    Channel receiver = accept_one(listener);
    const std::vector<int> descriptors(40, STDOUT_FILENO);
    for (int i = 0; i < 2; ++i) full->send("full", descriptors, Deadline::in(kLong));
    const auto send = [&](Milliseconds patience) {
      sender.send("descriptors", descriptors, Deadline::in(patience));
    };
    const Error error = error_of([&] { send(Milliseconds(20)); });
    CHECK(error.code() == ErrorCode::timeout);
    check_contains(error.what(), "raise the limit on open files");
    std::thread late([&] { send(kLong); });
    full.reset();
    never_reads.reset();
    late.join();
    CHECK_EQ(receiver.receive(Deadline::in(kLong)).bytes, "descriptors");
  });
}

TEST(a_full_queue_keeps_a_rank_until_its_deadline) {
  Listener listener;
  fill_queue(listener.name());
  const Error error = error_of([&] { Channel::connect(listener.name(), Deadline::in(Milliseconds(20))); });
  CHECK(error.code() == ErrorCode::timeout);
}

TEST(a_rank_at_a_full_queue_is_interrupted) {
  Listener listener;
  fill_queue(listener.name());
  set_interruption_check([] { return std::string("KeyboardInterrupt"); });
  const Error error = error_of([&] { Channel::connect(listener.name(), Deadline::in(kLong)); });
  set_interruption_check(nullptr);
  CHECK(error.code() == ErrorCode::aborted);
  check_contains(error.what(), "interrupted by KeyboardInterrupt while it waited for the hand-over");
}

TEST(a_rank_comes_in_when_a_full_queue_is_accepted) {
  Listener listener;
  fill_queue(listener.name());
  std::thread rank([&] {
    Channel channel = Channel::connect(listener.name(), Deadline::in(kLong));
    channel.send("hello", {}, Deadline::in(kLong));
    CHECK_EQ(channel.receive(Deadline::in(kLong)).bytes, "welcome");
  });
  while (true) {
    Channel next = accept_one(listener);
    try {
      next.receive(Deadline::in(kLong));
    } catch (const Error&) {
      continue;  // a stranger who has hung up
    }
    next.send("welcome", {}, Deadline::in(kLong));
    break;
  }
  rank.join();
}

TEST(a_dead_process_is_noticed_with_and_without_a_pidfd) {
  Processes sleeper(1, [](int) { pause(); });
  const pid_t pid = sleeper.pid(0);
  const PeerProcess with(open_pidfd(pid), pid, true);
  const PeerProcess without(FileDescriptor(), pid, true);
  const PeerProcess hidden(FileDescriptor(), pid, false);
  CHECK(!with.dead() && !without.dead() && !hidden.dead() && !PeerProcess().dead());
  kill(pid, SIGKILL);
  sleeper.wait();
  CHECK(with.dead() && without.dead() && !hidden.dead());
}

TEST(the_host_is_known) {
  CHECK(base::UsableCores::of_this_process().count() >= 1);
  CHECK(machine_key() == machine_key() && machine_key().size() > 36);
  CHECK(random_hex(16) != random_hex(16));
  CHECK_EQ(random_hex(16).size(), 32u);
  CHECK(pid_namespace().starts_with("pid:["));
}

TEST(interfaces_are_chosen_by_name) {
  CHECK_EQ(interface_address("", true), "127.0.0.1");
  CHECK_EQ(interface_address("lo", false), "127.0.0.1");
  CHECK_EQ(interface_address("=lo", false), "127.0.0.1");
  CHECK_EQ(interface_address("nothing,l", false), "127.0.0.1");
  const Error error = error_of([] { interface_address("=l,nothing", false); });
  CHECK(error.code() == ErrorCode::bootstrap);
  check_contains(
      error.what(),
      "VCCL_SOCKET_IFNAME==l,nothing matches no network interface that is up (there are: lo 127.0.0.1");
}

TEST(the_environment_is_checked) {
  setenv("VCCL_DEBUG", "info", 1);
  setenv("VCCL_HOSTID", "h1", 1);
  CHECK(read_variables().debug == LogLevel::info);
  CHECK_EQ(read_variables().host_id, "h1");
  setenv("VCCL_DEBUG", "loud", 1);
  check_contains(error_of([] { read_variables(); }).what(),
                 "VCCL_DEBUG is \"loud\"; allowed are WARN and INFO");
  unsetenv("VCCL_DEBUG");
  for (const LinkSecurity security :
       {LinkSecurity::encrypt, LinkSecurity::authenticate, LinkSecurity::none}) {
    setenv("VCCL_LINK_SECURITY", name_of(security), 1);
    CHECK(read_variables().link_security == security);
  }
  setenv("VCCL_LINK_SECURITY", "some", 1);
  check_contains(error_of([] { read_variables(); }).what(),
                 "VCCL_LINK_SECURITY is \"some\"; allowed are encrypt, authenticate and none");
  unsetenv("VCCL_LINK_SECURITY");
  CHECK(read_variables().link_security == LinkSecurity::encrypt);
  unsetenv("VCCL_HOSTID");
  CHECK(read_variables().debug == LogLevel::none);
  CHECK(read_variables().ports.any());
  for (const auto& [text, range] :
       {std::pair("40000-40999", PortRange{40'000, 40'999}), std::pair("1-65535", PortRange{1, 65'535}),
        std::pair("7000", PortRange{7'000, 7'000})}) {
    setenv("VCCL_PORT_RANGE", text, 1);
    CHECK(read_variables().ports == range);
  }
  for (const std::string text :
       {"0-5", "9-8", "1-65536", "-", "5-", "-5", "a-b", "1-2-3", "1 - 2", "+1", "99999999999"}) {
    setenv("VCCL_PORT_RANGE", text.c_str(), 1);
    check_contains(error_of([] { read_variables(); }).what(),
                   "VCCL_PORT_RANGE is \"" + text + "\"; allowed are two ports from 1 to 65535");
  }
  unsetenv("VCCL_PORT_RANGE");
  CHECK(read_variables().link_timeout == Milliseconds(5'000));
  setenv("VCCL_LINK_TIMEOUT", "86400", 1);
  CHECK(read_variables().link_timeout == Milliseconds(86'400'000));
  for (const std::string text : {"0", "86401", "1.5", "5s", "-1"}) {
    setenv("VCCL_LINK_TIMEOUT", text.c_str(), 1);
    check_contains(error_of([] { read_variables(); }).what(),
                   "VCCL_LINK_TIMEOUT is \"" + text + "\"; allowed are 1 to 86400 seconds");
  }
  unsetenv("VCCL_LINK_TIMEOUT");
  CHECK(read_variables().warn_after == Milliseconds(60'000));
  setenv("VCCL_WARN_AFTER", "0", 1);
  CHECK(read_variables().warn_after == Milliseconds(0));
  for (const std::string text : {"86401", "1.5", "5s", "-1", "never"}) {
    setenv("VCCL_WARN_AFTER", text.c_str(), 1);
    check_contains(error_of([] { read_variables(); }).what(),
                   "VCCL_WARN_AFTER is \"" + text + "\"; allowed are 0 to 86400 seconds");
  }
  unsetenv("VCCL_WARN_AFTER");
  setenv("VCCL_RAS_ADDR", "[::1]:28028", 1);
  CHECK_EQ(read_ras_address(), "[::1]:28028");
  for (const std::string text : {"28028", "localhost", ":28028", "localhost:", "localhost:0", "a:65536"}) {
    setenv("VCCL_RAS_ADDR", text.c_str(), 1);
    check_contains(error_of([] { read_variables(); }).what(),
                   "VCCL_RAS_ADDR is \"" + text + "\"; allowed are a host and a port");
  }
  unsetenv("VCCL_RAS_ADDR");
}

TEST(the_checks_of_programs_are_checked_when_read) {
  const auto read = [](const char* value) {
    setenv("VCCL_CHECK", value, 1);
    const CheckVariables checks = read_check_variables();
    return std::array{checks.nan_inputs, checks.nan_outputs, checks.leaks, checks.content, checks.order};
  };
  CHECK((read("") == std::array{false, false, false, false, false}));
  CHECK((read("nan") == std::array{true, false, false, false, false}));
  CHECK((read("leak,nan:outputs") == std::array{false, true, true, false, false}));
  CHECK((read("content") == std::array{false, false, false, true, false}));
  CHECK((read("order") == std::array{false, false, false, false, true}));
  CHECK((read("all") == std::array{true, true, true, true, true}));
  for (const std::string text : {"NaN", "1", "nan;leak", ",leak", "nan:input"}) {
    check_contains(error_of([&] { read(text.c_str()); }).what(),
                   "VCCL_CHECK is \"" + text +
                       "\"; allowed are nan, nan:inputs, nan:outputs, content, order, leak " + "and all");
  }
  unsetenv("VCCL_CHECK");
}

TEST(variables_of_the_flight_recorder_are_checked_when_read) {
  for (const char* name : {"TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_TRACE_BUFFER_SIZE"})
    unsetenv(name);
  CHECK_EQ(read_recorder_variables().entries, std::size_t{2'000});
  CHECK_EQ(read_recorder_variables().file, std::string());
  CHECK(read_recorder_variables().stacks == StacksToRecord::none);
  setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "5", 1);  // counts in pose alone
  CHECK_EQ(read_recorder_variables().entries, std::size_t{2'000});
  setenv("TORCH_FR_BUFFER_SIZE", "30", 1);
  CHECK_EQ(read_recorder_variables().entries, std::size_t{30});
  setenv("VCCL_RECORDER_SIZE", "0", 1);
  CHECK_EQ(read_recorder_variables().entries, std::size_t{0});
  for (const std::string text : {"1000001", "-1", "2k", "1.5", " 1"}) {
    setenv("VCCL_RECORDER_SIZE", text.c_str(), 1);
    check_contains(error_of([] { read_recorder_variables(); }).what(),
                   "VCCL_RECORDER_SIZE is \"" + text + "\"; allowed are 0 to 1000000 operations");
  }
  unsetenv("VCCL_RECORDER_SIZE");
  setenv("TORCH_FR_BUFFER_SIZE", "few", 1);
  check_contains(error_of([] { read_recorder_variables(); }).what(), "TORCH_FR_BUFFER_SIZE is \"few\"");
  unsetenv("TORCH_FR_BUFFER_SIZE");
  setenv("VCCL_RECORD", "/tmp/a,b,hash", 1);
  CHECK_EQ(read_recorder_variables().record_directory, std::string("/tmp/a,b"));
  CHECK(read_recorder_variables().record_hashes);
  CHECK_EQ(read_recorder_variables().entries, std::size_t{16'384});
  setenv("VCCL_RECORD", "/tmp/a,hashes", 1);
  CHECK_EQ(read_recorder_variables().record_directory, std::string("/tmp/a,hashes"));
  CHECK(!read_recorder_variables().record_hashes);
  setenv("VCCL_RECORD", ",hash", 1);
  check_contains(error_of([] { read_recorder_variables(); }).what(), "VCCL_RECORD is \",hash\"; allowed are");
  unsetenv("VCCL_RECORD");
  setenv("VCCL_RECORD_STACKS", "1", 1);
  CHECK(read_recorder_variables().stacks == StacksToRecord::whole);
  setenv("VCCL_CHECK", "order", 1);
  CHECK(read_recorder_variables().stacks == StacksToRecord::whole);
  setenv("VCCL_RECORD_STACKS", "0", 1);
  CHECK(read_recorder_variables().stacks == StacksToRecord::line);
  unsetenv("VCCL_CHECK");
  setenv("VCCL_RECORD_STACKS", "yes", 1);
  check_contains(error_of([] { read_recorder_variables(); }).what(),
                 "VCCL_RECORD_STACKS is \"yes\"; allowed are 0 and 1");
  unsetenv("VCCL_RECORD_STACKS");
  setenv("TORCH_FR_CPP_STACK", "yes", 1);
  CHECK(read_recorder_variables().stacks == StacksToRecord::with_cpp);
  setenv("TORCH_FR_CPP_STACK", "often", 1);
  check_contains(error_of([] { read_recorder_variables(); }).what(),
                 "TORCH_FR_CPP_STACK is \"often\"; allowed are y, yes,");
  unsetenv("TORCH_FR_CPP_STACK");
  setenv("TORCH_NCCL_TRACE_CPP_STACK", "1", 1);  // counts in pose only
  CHECK(read_recorder_variables().stacks == StacksToRecord::none);
  unsetenv("TORCH_NCCL_TRACE_CPP_STACK");
  setenv("TORCH_FR_DUMP_TEMP_FILE", "/tmp/of_torch_", 1);
  CHECK_EQ(read_recorder_variables().file, std::string("/tmp/of_torch_"));
  setenv("VCCL_RECORDER_FILE", "/tmp/own_", 1);
  CHECK_EQ(read_recorder_variables().file, std::string("/tmp/own_"));
  unsetenv("VCCL_RECORDER_FILE");
  unsetenv("TORCH_FR_DUMP_TEMP_FILE");
  setenv("VCCL_RECORDER_TRIGGER", "/tmp/now", 1);
  CHECK_EQ(read_recorder_variables().trigger, std::string("/tmp/now"));
  unsetenv("VCCL_RECORDER_TRIGGER");
  also_read_nccl_variables();
  CHECK_EQ(read_recorder_variables().entries, std::size_t{5});
  unsetenv("TORCH_NCCL_TRACE_BUFFER_SIZE");
  CHECK(read_recorder_variables().after_failure == DumpsAfterFailure::where_named);
  setenv("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "/tmp/now_", 1);
  CHECK_EQ(read_recorder_variables().pipe, std::string("/tmp/now_"));
  unsetenv("TORCH_NCCL_DEBUG_INFO_PIPE_FILE");
  setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "Yes", 1);
  CHECK(read_recorder_variables().after_failure == DumpsAfterFailure::always);
  setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", 1);
  CHECK(read_recorder_variables().after_failure == DumpsAfterFailure::never);
  setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "soon", 1);
  check_contains(
      error_of([] { read_recorder_variables(); }).what(),
      "TORCH_NCCL_DUMP_ON_TIMEOUT is \"soon\"; allowed are y, yes, 1, t, true, n, no, 0, f and false");
  unsetenv("TORCH_NCCL_DUMP_ON_TIMEOUT");
  setenv("TORCH_NCCL_NAN_CHECK", "soon", 1);
  check_contains(error_of([] { read_check_variables(); }).what(),
                 "TORCH_NCCL_NAN_CHECK is \"soon\"; allowed");
  unsetenv("TORCH_NCCL_NAN_CHECK");
}

}  // namespace
}  // namespace vccl

TEST_MAIN
