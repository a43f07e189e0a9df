// Processes that share card memory and are killed at any point. What a test expects holds wherever that is.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
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

/// Waits for up to `most` microseconds.
void sleep_up_to(std::mt19937& random, int most) {
  std::this_thread::sleep_for(
      std::chrono::microseconds(static_cast<int>(random() % static_cast<unsigned>(most))));
}

}  // namespace

TEST(receivers_die_at_any_point) {
  std::vector<Actor> actors;
  actors.emplace_back([](Stage& stage) {
    std::mt19937 random(1);
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

TEST(owners_die_at_any_point) {
  for (int death = 0; death < kDeaths; ++death) {
    play({Actor(
              [](Stage& stage) {
                stage.tell(1, std::to_string(getpid()));
                for (int i = 0; i < kMessages; ++i) stage.tell(1, make_message(i));
                pause();
              },
              true),
          Actor([death](Stage& stage) {
            const pid_t pid = std::stoi(stage.hear(1));
            std::atomic<bool> killed{false};
            std::thread killer([&] {
              std::mt19937 random(static_cast<unsigned>(death));
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
              } catch (const Error& found) {
                error = found.what();
              }
            }
            killer.join();
            CHECK(error.empty() || error.find("that owns the memory has ended") != std::string::npos);
            last.reset();
            std::ifstream maps("/proc/self/maps");
            int mapped = 0;
            for (std::string line; std::getline(maps, line);)
              mapped += line.find("/memfd:vdev:") != std::string::npos;
            CHECK(mapped <= 1);  // its own card
          })});
  }
}

int main(int argc, char** argv) {
  setenv("VDEV_DEVICE_COUNT", "1", 1);
  setenv("VDEV_MEMORY", "64M", 1);
  unsetenv("VDEV_VISIBLE_DEVICES");
  return check::run(argc, argv);
}
