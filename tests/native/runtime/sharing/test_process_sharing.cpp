// Card memory that several processes use: what they see, when its owner may use it again, and who may die.
#include <dirent.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/process_sharing.hpp"
#include "tests/native/check.hpp"
#include "tests/native/runtime/gate.hpp"
#include "tests/native/runtime/processes.hpp"
#include "tests/native/runtime/suppressions.hpp"

using namespace vdev;
using scene::Actor;
using scene::die;
using scene::play;
using scene::Stage;

namespace {

constexpr std::size_t kSize = 3 << 20;
constexpr std::size_t kOwner = 0, kReceiver = 1, kThird = 2;

std::byte* allocate(std::size_t bytes = kSize, int index = 0) {
  return card(index).allocator().allocate(bytes, card(index).default_stream());
}

void free(std::byte* p, int index = 0) {
  card(index).allocator().free(p);
}

std::int64_t allocated(int index = 0) {
  return card(index).allocator().stats().allocated_bytes.current;
}

/// Collects until nothing is allocated: a process that was killed may still be ending.
bool all_is_free() {
  return eventually([] {
    collect_shared_blocks();
    return allocated() == 0;
  });
}

int open_files() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder)) ++count;
  closedir(folder);
  return count;
}

int mappings_of_cards() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("/memfd:vdev:") != std::string::npos;
  return count;
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const CardError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST(both_see_what_either_writes) {
  play({Actor([](Stage& stage) {
          std::byte* p = allocate();
          p[5] = std::byte{1};
          stage.tell(kReceiver, share_range(0, p + 5, kSize - 5));
          CHECK_EQ(stage.hear(kOwner), "written");
          CHECK_EQ(static_cast<int>(p[kSize - 1]), 2);
          free(p);
          stage.tell(kReceiver, "freed");
          CHECK(all_is_free());
        }),
        Actor([](Stage& stage) {
          const int files = open_files();
          {
            const auto held = receive_range(stage.hear_range(kReceiver));
            CHECK_EQ(static_cast<int>(held->data()[0]), 1);
            held->data()[kSize - 6] = std::byte{2};
            CHECK_EQ(held->card(), 0);
            CHECK_EQ(card_showing(held->data()), 0);
            CHECK_EQ(card_of(held->data()), -1);  // its own arena does not hold it
            CHECK_EQ(allocated(), 0);
            CHECK_EQ(card(0).allocator().size_of(held->data()), 0u);
            stage.tell(kOwner, "written");
            stage.hear(kReceiver);
            CHECK_EQ(mappings_of_cards(), 3);  // its own card, the owner's, and the owner's ledger
          }
          CHECK_EQ(mappings_of_cards(), 1);
          CHECK_EQ(open_files(), files + 1);  // its own card
          CHECK_EQ(card_showing(&stage), -1);
        })});
}

TEST(a_block_is_kept_until_the_message_is_received_and_let_go) {
  play({Actor([](Stage& stage) {
          std::byte* p = allocate();
          const auto size = allocated();
          const auto message = share_range(0, p, kSize);
          free(p);
          CHECK_THROWS(free(p), InvalidArgument);
          collect_shared_blocks();
          CHECK_EQ(allocated(), size);  // the message is on its way
          std::byte* other = allocate();
          CHECK(other != p);
          free(other);
          stage.tell(kReceiver, message);
          CHECK_EQ(stage.hear(kOwner), "received");
          collect_shared_blocks();
          CHECK_EQ(allocated(), size);  // it is held
          stage.tell(kReceiver, "let go");
          CHECK_EQ(stage.hear(kOwner), "let go");
          card(0).allocator().empty_cache();
          CHECK_EQ(card(0).allocator().stats().reserved_bytes.current, 0);
        }),
        Actor([](Stage& stage) {
          auto held = receive_range(stage.hear_range(kReceiver));
          stage.tell(kOwner, "received");
          stage.hear(kReceiver);
          held.reset();
          stage.tell(kOwner, "let go");
        })});
}

TEST(an_allocation_finds_what_the_receivers_have_let_go) {
  play({Actor([](Stage& stage) {
          card(0).allocator().set_limit(20 << 20);
          std::byte* p = allocate(15 << 20);
          stage.tell(kReceiver, share_range(0, p, 15 << 20));
          free(p);
          CHECK_THROWS(allocate(15 << 20), OutOfMemory);
          stage.tell(kReceiver, "let go");
          CHECK_EQ(stage.hear(kOwner), "let go");
          CHECK(allocate(15 << 20) == p);
        }),
        Actor([](Stage& stage) {
          auto held = receive_range(stage.hear_range(kReceiver));
          stage.hear(kReceiver);
          held.reset();
          stage.tell(kOwner, "let go");
        })});
}

TEST(a_receiver_may_die) {
  play({Actor([](Stage& stage) {
          for (int i = 0; i < 3; ++i) {
            std::byte* p = allocate();
            stage.tell(kReceiver, share_range(0, p, kSize));
            free(p);
          }
          CHECK_EQ(stage.hear(kOwner), "received");
          CHECK(all_is_free());
        }),
        Actor(
            [](Stage& stage) {
              std::vector<std::unique_ptr<HeldRange>> held;
              for (int i = 0; i < 3; ++i) held.push_back(receive_range(stage.hear_range(kReceiver)));
              stage.tell(kOwner, "received");
              die();
            },
            true)});
}

TEST(an_owner_may_die) {
  play({Actor(
            [](Stage& stage) {
              std::byte* p = allocate();
              p[kSize - 1] = std::byte{3};
              stage.tell(kReceiver, share_range(0, p, kSize));
              stage.tell(kReceiver, share_range(0, p, kSize));
              stage.tell(kReceiver, std::to_string(getpid()));
              stage.hear(kOwner);
              die();
            },
            true),
        Actor([](Stage& stage) {
          auto held = receive_range(stage.hear_range(kReceiver));
          const auto unused = stage.hear_range(kReceiver);
          const std::string folder = "/proc/" + stage.hear(kReceiver) + "/fd/0";
          stage.tell(kOwner, "die");
          CHECK(eventually([&] { return access(folder.c_str(), F_OK) != 0; }));
          CHECK_EQ(static_cast<int>(held->data()[kSize - 1]), 3);
          decline_range(unused);  // while its memory is mapped, and when it is not
          CHECK_EQ(static_cast<int>(held->data()[kSize - 1]), 3);
          held.reset();
          CHECK_EQ(mappings_of_cards(), 1);
          check_contains(error_of([&] { receive_range(unused); }), "that owns it has ended");
          decline_range(unused);
          CHECK_EQ(mappings_of_cards(), 1);
        })});
}

TEST(the_owner_gets_its_own_memory_back) {
  play({Actor([](Stage& stage) {
          std::byte* p = allocate();
          stage.tell(kReceiver, share_range(0, p + 512, 100));
          free(p);
          auto held = receive_range(stage.hear_range(kOwner));
          CHECK(held->data() == p + 512);
          stage.tell(kReceiver, "let go");
          CHECK_EQ(stage.hear(kOwner), "let go");
          collect_shared_blocks();
          CHECK(allocated() != 0);
          CHECK_EQ(mappings_of_cards(), 2);  // its card and its ledger
          // What the owner holds can be shared as what it has allocated.
          const auto again = share_range(0, held->data(), 100);
          held.reset();
          collect_shared_blocks();
          CHECK(allocated() != 0);
          decline_range(again);
          CHECK_EQ(allocated(), 0);
          check_contains(error_of([&] { receive_range(again); }), "Was it received more than once?");
        }),
        Actor([](Stage& stage) {
          auto held = receive_range(stage.hear_range(kReceiver));
          stage.tell(kOwner, share_range(held->card(), held->data(), 100));
          stage.hear(kReceiver);
          held.reset();
          stage.tell(kOwner, "let go");
        })});
}

TEST(what_was_received_can_be_passed_on) {
  play({Actor([](Stage& stage) {
          std::byte* p = allocate();
          p[10] = std::byte{7};
          stage.tell(kReceiver, share_range(0, p, kSize));
          free(p);
          CHECK_EQ(stage.hear(kOwner), "passed on");
          collect_shared_blocks();
          CHECK(allocated() != 0);  // a message is on its way to the third process
          stage.tell(kThird, "go");
          CHECK_EQ(stage.hear(kOwner), "received");
          collect_shared_blocks();
          CHECK(allocated() != 0);
          stage.tell(kThird, "let go");
          CHECK(all_is_free());
        }),
        Actor([](Stage& stage) {
          auto held = receive_range(stage.hear_range(kReceiver));
          CHECK_THROWS(share_range(0, held->data() + 1, kSize), InvalidArgument);  // one byte beyond
          stage.tell(kThird, share_range(0, held->data() + 10, 5));
          held.reset();
          stage.tell(kOwner, "passed on");
        }),
        Actor([](Stage& stage) {
          const auto message = stage.hear_range(kThird);
          stage.hear(kThird);
          auto held = receive_range(message);
          CHECK_EQ(static_cast<int>(held->data()[0]), 7);
          stage.tell(kOwner, "received");
          stage.hear(kThird);
        })});
}

TEST(cards_are_matched_by_their_physical_number) {
  play({Actor([](Stage& stage) {
          setenv("VDEV_VISIBLE_DEVICES", "2,3", 1);
          for (int index : {0, 1}) stage.tell(kReceiver, share_range(index, allocate(512, index), 512));
          stage.tell(kReceiver, share_range(0, nullptr, 0));
          CHECK_EQ(stage.hear(kOwner), "done");
        }),
        Actor([](Stage& stage) {
          setenv("VDEV_VISIBLE_DEVICES", "0,1,2", 1);
          CHECK_EQ(receive_range(stage.hear_range(kReceiver))->card(), 2);
          const auto other = stage.hear_range(kReceiver);
          CHECK_THROWS(receive_range(other), InvalidArgument);
          check_contains(error_of([&] { receive_range(other); }),
                         "it is on the physical card 3, and this process sees the cards 0, 1, 2");
          CHECK_EQ(card_of_range(stage.hear_range(kReceiver)), 2);
          stage.tell(kOwner, "done");
        })});
}

// A forked child has copies of the receiver's objects, and of its descriptor of the ledger.
TEST(forked_children_hold_nothing_and_let_nothing_go) {
  play({Actor([](Stage& stage) {
          std::byte* p = allocate();
          stage.tell(kReceiver, share_range(0, p, kSize));
          free(p);
          CHECK_EQ(stage.hear(kOwner), "child has ended");
          collect_shared_blocks();
          CHECK(allocated() != 0);
          stage.tell(kReceiver, "die");
          CHECK(all_is_free());
          stage.tell(kThird, "end");
        }),
        Actor(
            [](Stage& stage) {
              auto held = receive_range(stage.hear_range(kReceiver));
              const pid_t child = fork();
              if (child == 0) {
                held.reset();
                _exit(0);
              }
              CHECK_EQ(waitpid(child, nullptr, 0), child);
              if (fork() == 0) {  // outlives its parent
                stage.hear(kThird);
                _exit(0);
              }
              stage.tell(kOwner, "child has ended");
              stage.hear(kReceiver);
              die();
            },
            true),
        Actor([](Stage&) {})});
}

TEST(a_forked_child_of_the_owner_is_refused) {
  play({Actor([](Stage&) {
    std::byte* p = allocate();
    const auto message = share_range(0, p, kSize);
    const pid_t child = fork();
    if (child == 0) {
      const bool refused = error_of([&] { share_range(0, p, kSize); }) == BadFork().what() &&
                           error_of([&] { receive_range(message); }) == BadFork().what();
      decline_range(message);
      _exit(refused ? 0 : 1);
    }
    int status = 1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    decline_range(message);
    free(p);
    CHECK_EQ(allocated(), 0);
  })});
}

TEST(streams_that_use_a_lent_block_are_waited_for) {
  play({Actor([](Stage&) {
    auto side = card(0).pool_stream(0);
    std::byte* p = allocate();
    card(0).allocator().record_stream(p, side);
    const auto message = share_range(0, p, kSize);
    auto gate = std::make_shared<Gate>();
    side->enqueue([gate] { gate->pass(); });
    free(p);
    decline_range(message);
    collect_shared_blocks();
    CHECK_EQ(allocated(), 0);
    CHECK(card(0).allocator().stats().active_bytes.current != 0);
    gate->open();
    card(0).drain_program_streams();
    card(0).allocator().empty_cache();
    CHECK_EQ(card(0).allocator().stats().active_bytes.current, 0);
  })});
}

// Each of the threads opens the ledger that another one may be closing.
TEST(threads_receive_and_let_go_at_once) {
  constexpr int kThreads = 4, kMessages = 100;
  play({Actor([](Stage& stage) {
          for (int i = 0; i < kThreads * kMessages; ++i) {
            std::byte* p = allocate(1024);
            p[0] = static_cast<std::byte>(i % 100);
            stage.tell(kReceiver, share_range(0, p, 1024));
            free(p);
            CHECK_EQ(stage.hear(kOwner), "next");
          }
          CHECK_EQ(stage.hear(kOwner), "done");
          CHECK(all_is_free());
        }),
        Actor([](Stage& stage) {
          std::vector<SharedRange> messages;
          for (int i = 0; i < kThreads * kMessages; ++i) {
            messages.push_back(stage.hear_range(kReceiver));
            stage.tell(kOwner, "next");
          }
          std::atomic<int> wrong{0};
          std::vector<std::thread> threads;
          for (int t = 0; t < kThreads; ++t) {
            threads.emplace_back([&, t] {
              for (int i = t; i < kThreads * kMessages; i += kThreads) {
                const auto held = receive_range(messages[static_cast<std::size_t>(i)]);
                if (static_cast<int>(held->data()[0]) != i % 100) ++wrong;
              }
            });
          }
          for (auto& thread : threads) thread.join();
          CHECK_EQ(wrong.load(), 0);
          CHECK_EQ(mappings_of_cards(), 1);
          stage.tell(kOwner, "done");
        })});
}

int main(int argc, char** argv) {
  setenv("VDEV_DEVICE_COUNT", "4", 1);
  setenv("VDEV_MEMORY", "64M", 1);
  unsetenv("VDEV_VISIBLE_DEVICES");
  return check::run(argc, argv);
}
