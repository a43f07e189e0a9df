// Processes that share card memory and are killed at any point. What a test expects holds wherever that is:
// nothing of the memory is left behind. Each test plays 1000 messages with 20 deaths.
//
// VCCL_TEST_SECONDS=600 plays them again for that long, and VCCL_TEST_SEED=N begins with the seed N.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/process_sharing.hpp"
#include "tests/native/check.hpp"
#include "tests/native/runtime/gate.hpp"
#include "tests/native/runtime/processes.hpp"
#include "tests/native/runtime/suppressions.hpp"

using namespace vdev;
using scene::Actor;
using scene::play;
using scene::Stage;

namespace {

constexpr std::size_t kSize = 4096;
constexpr int kMessages = 50, kDeaths = 20;

SharedRange make_message(int value) {
  auto& allocator = card(0).allocator();
  std::byte* p = allocator.allocate(kSize, card(0).default_stream());
  p[0] = static_cast<std::byte>(value);
  auto message = share_range(0, p, kSize);
  allocator.free(p);
  return message;
}

unsigned number_of(const char* name) {
  const char* text = std::getenv(name);
  return text ? static_cast<unsigned>(std::strtoul(text, nullptr, 10)) : 0;
}

/// Calls `play_with` with seeds, for the time that VCCL_TEST_SECONDS says, and at least once. The processes
/// use cards of their own, so that they see all who have memory there.
void for_seeds(const std::function<void(unsigned seed)>& play_with) {
  setenv("VDEV_HOSTID", std::to_string(getpid()).c_str(), 1);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(number_of("VCCL_TEST_SECONDS"));
  const unsigned first = number_of("VCCL_TEST_SEED");
  for (unsigned seed = first; seed == first || std::chrono::steady_clock::now() < end; ++seed) {
    try {
      play_with(seed);
    } catch (const std::exception& error) {
      throw check::Failure(std::string(error.what()) + " (VCCL_TEST_SEED=" + std::to_string(seed) + ")");
    }
  }
}

/// Checks that neither the allocator nor the machine keeps anything of the card, and that nobody has any.
void check_that_nothing_is_left() {
  card(0).allocator().empty_cache();
  CHECK_EQ(card(0).allocator().stats().reserved_bytes.current, std::int64_t{0});
  struct stat memory;
  CHECK_EQ(fstat(card(0).arena().fd(), &memory), 0);
  CHECK_EQ(memory.st_blocks, blkcnt_t{0});
  CHECK(eventually([] { return card(0).users().empty(); }));  // a killed process may take a moment to end
}

/// Waits for up to `most` microseconds.
void sleep_up_to(std::mt19937& random, int most) {
  std::this_thread::sleep_for(
      std::chrono::microseconds(static_cast<int>(random() % static_cast<unsigned>(most))));
}

void let_receivers_die(unsigned seed) {
  std::vector<Actor> actors;
  actors.emplace_back([seed](Stage& stage) {
    std::mt19937 random(seed);
    std::vector<SharedRange> messages;
    for (std::size_t receiver = 1; receiver <= kDeaths; ++receiver) {
      const pid_t pid = std::stoi(stage.hear(0));
      for (int i = 0; i < kMessages; ++i) {
        messages.push_back(make_message(i));
        stage.tell(receiver, messages.back());
      }
      sleep_up_to(random, 1500);
      kill(pid, SIGKILL);
      stage.tell(receiver % kDeaths + 1, "your turn");
    }
    // Some messages were not received. The owner receives them, and nothing is left of any other process.
    for (const auto& message : messages) decline_range(message);
    CHECK(eventually([] {
      collect_shared_blocks();
      return card(0).allocator().stats().allocated_bytes.current == 0;
    }));
    check_that_nothing_is_left();
  });
  for (std::size_t receiver = 1; receiver <= kDeaths; ++receiver) {
    actors.emplace_back(
        [receiver](Stage& stage) {
          if (receiver != 1) stage.hear(receiver);
          stage.tell(0, std::to_string(getpid()));
          std::vector<std::unique_ptr<HeldRange>> held(3);
          for (int i = 0; i < kMessages; ++i) {
            held[static_cast<std::size_t>(i) % held.size()] = receive_range(stage.hear_range(receiver));
            if (held[static_cast<std::size_t>(i) % held.size()]->data()[0] != static_cast<std::byte>(i))
              return;
          }
          pause();
        },
        true);
  }
  play(actors);
}

void let_owners_die(unsigned seed) {
  for (int death = 0; death < kDeaths; ++death) {
    play({Actor(
              [](Stage& stage) {
                stage.tell(1, std::to_string(getpid()));
                for (int i = 0; i < kMessages; ++i) stage.tell(1, make_message(i));
                pause();
              },
              true),
          Actor([seed, death](Stage& stage) {
            const pid_t pid = std::stoi(stage.hear(1));
            std::atomic<bool> killed{false};
            std::thread killer([&] {
              std::mt19937 random(seed * kDeaths + static_cast<unsigned>(death));
              sleep_up_to(random, 1000);
              kill(pid, SIGKILL);
              killed = true;
            });
            std::unique_ptr<HeldRange> last;
            std::string error;
            int received = 0;
            while (error.empty() && received < kMessages && (stage.has_news(1) || !killed)) {
              if (!stage.has_news(1)) continue;
              try {
                auto next = receive_range(stage.hear_range(1));
                if (next->data()[0] != static_cast<std::byte>(received)) error = "wrong value";
                ++received;
                if (received % 3 == 0) last.reset();
                last = std::move(next);
              } catch (const CardError& found) {
                error = found.what();
              }
            }
            killer.join();
            CHECK(error.empty() || error.find("that owns it has ended") != std::string::npos);
            last.reset();
            std::ifstream maps("/proc/self/maps");
            int mapped = 0;
            for (std::string line; std::getline(maps, line);)
              mapped += line.find("/memfd:vdev:") != std::string::npos;
            CHECK(mapped <= 1);  // its own card
            check_that_nothing_is_left();
          })});
  }
}

}  // namespace

TEST(receivers_die_at_any_point) {
  for_seeds(let_receivers_die);
}

TEST(owners_die_at_any_point) {
  for_seeds(let_owners_die);
}

int main(int argc, char** argv) {
  setenv("VDEV_DEVICE_COUNT", "1", 1);
  setenv("VDEV_MEMORY", "64M", 1);
  unsetenv("VDEV_VISIBLE_DEVICES");
  return check::run(argc, argv);
}
