// What processes have of a card's memory: together never more than its capacity, and nothing of the dead.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "csrc_device/runtime/memory/usage_table.hpp"
#include "tests/native/check.hpp"
#include "tests/native/runtime/gate.hpp"
#include "tests/native/runtime/processes.hpp"

using namespace vdev;

namespace {

constexpr CardSet kCards{.host = 7, .capacity = 100};

/// Names a file that does not exist yet, and removes it at the end.
class File {
 public:
  File() {
    char name[] = "/dev/shm/vdev_test_XXXXXX";
    const int fd = mkstemp(name);
    CHECK(fd >= 0);
    close(fd);
    path = name;
    unlink(name);
  }
  ~File() { unlink(path.c_str()); }
  std::string path;
};

}  // namespace

TEST(processes_share_a_card_and_the_dead_have_nothing) {
  const File file;
  scene::play({
      {[&](scene::Stage& stage) {
        UsageTable table(file.path, kCards);
        CHECK(table.reserve(3, 60));
        stage.tell(1, std::to_string(getpid()));
        CHECK_EQ(stage.hear(0), std::string("reserved"));
        CHECK(!table.reserve(3, 20));
        table.give_back(3, 10);
        CHECK(table.reserve(3, 10));
        stage.tell(1, "die");
        // Its end is seen by its file lock, so the memory is there as soon as the process is gone.
        CHECK(eventually([&] { return table.reserve(3, 40); }));
        CHECK_EQ(table.users(3).size(), std::size_t{1});
      }},
      {[&](scene::Stage& stage) {
         UsageTable table(file.path, kCards);
         const std::string first = stage.hear(1);
         CHECK(!table.reserve(3, 41));
         CHECK(table.reserve(3, 30));
         CHECK(table.reserve(4, 100));
         const auto users = table.users(3);
         CHECK_EQ(users.size(), std::size_t{2});
         CHECK_EQ(std::to_string(users[0].pid), first);
         CHECK(!users[0].self && users[1].self && !users[0].foreign);
         CHECK_EQ(users[0].bytes, std::size_t{60});
         CHECK(users[0].name.find("test_usage_table") != std::string::npos);
         stage.tell(0, "reserved");
         stage.hear(1);
         scene::die();
       },
       true},
  });
}

TEST(sets_of_cards_do_not_share) {
  const File file;
  scene::play({
      {[&](scene::Stage& stage) {
        UsageTable table(file.path, kCards);
        CHECK(table.reserve(0, 100));
        stage.tell(1, "full");
        stage.hear(0);
      }},
      {[&](scene::Stage& stage) {
        stage.hear(1);
        UsageTable of_other_capacity(file.path, {.host = 7, .capacity = 101});
        CHECK(of_other_capacity.reserve(0, 101));
        CHECK_EQ(of_other_capacity.users(0).size(), std::size_t{1});
        stage.tell(2, "next");
      }},
      {[&](scene::Stage& stage) {
        stage.hear(2);
        UsageTable of_other_host(file.path, {.host = 8, .capacity = 100});
        CHECK(of_other_host.reserve(0, 100));
        stage.tell(0, "done");
      }},
  });
}

TEST(many_processes_and_threads_never_have_more_than_the_card) {
  const File file;
  void* shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED);
  auto& held = *new (shared) std::atomic<int>(0);
  const auto role = [&](scene::Stage&) {
    UsageTable table(file.path, kCards);
    const auto work = [&] {
      for (int round = 0; round < 300; ++round) {
        if (!table.reserve(1, 30)) continue;
        CHECK(held.fetch_add(30) + 30 <= 100);
        std::this_thread::yield();
        held.fetch_sub(30);
        table.give_back(1, 30);
      }
    };
    std::thread other(work);
    work();
    other.join();
  };
  scene::play({{role}, {role}, {role}});
  UsageTable table(file.path, kCards);
  CHECK_EQ(table.reserved(1), std::size_t{0});
  munmap(shared, 4096);
}

TEST(a_forked_child_does_not_keep_what_its_parent_had) {
  const File file;
  scene::play({
      {[&](scene::Stage& stage) {
         UsageTable table(file.path, kCards);
         CHECK(table.reserve(0, 100));
         const pid_t child = fork();
         if (child == 0) {
           stage.hear(0);  // lives until the other process has seen that the parent's memory is free
           _exit(0);
         }
         stage.tell(1, "reserved");
         scene::die();
       },
       true},
      {[&](scene::Stage& stage) {
        UsageTable table(file.path, kCards);
        stage.hear(1);
        CHECK(eventually([&] { return table.reserve(0, 100); }));
        stage.tell(0, "done");
      }},
  });
}

TEST(the_table_is_made_again_when_its_file_is_removed) {
  const File file;
  UsageTable table(file.path, kCards);
  CHECK(table.reserve(0, 50));
  unlink(file.path.c_str());
  CHECK(table.reserve(0, 10));
  scene::play({{[&](scene::Stage&) {
    UsageTable other(file.path, kCards);
    CHECK(!other.reserve(0, 41));
    CHECK(other.reserve(0, 40));
  }}});
}

TEST(the_last_user_removes_the_file) {
  const File file;
  scene::play({
      {[&](scene::Stage& stage) {
        UsageTable table(file.path, kCards);
        CHECK(table.reserve(0, 1));
        stage.tell(1, "reserved");
        stage.hear(0);
        table.leave();
        CHECK(!std::filesystem::exists(file.path));
      }},
      {[&](scene::Stage& stage) {
        stage.hear(1);
        {
          UsageTable table(file.path, kCards);
          CHECK(table.reserve(0, 1));
          table.leave();
        }
        CHECK(std::filesystem::exists(file.path));
        stage.tell(0, "left");
      }},
  });
}

TEST(the_last_of_processes_that_end_together_removes_the_file) {
  const File file;
  scene::play({
      {[&](scene::Stage& stage) {
        UsageTable table(file.path, kCards);
        CHECK(table.reserve(0, 1));
        stage.tell(1, "reserved");
        stage.hear(0);
        table.leave();
        table.give_back(0, 1);
        stage.tell(1, "left");
        stage.hear(0);
      }},
      {[&](scene::Stage& stage) {
        UsageTable table(file.path, kCards);
        CHECK(table.reserve(0, 1));
        stage.tell(0, "reserved");
        stage.hear(1);
        stage.hear(1);
        CHECK(std::filesystem::exists(file.path));
        table.leave();  // the other process has not ended yet
        CHECK(!std::filesystem::exists(file.path));
        stage.tell(0, "left");
      }},
  });
}

TEST(without_the_file_a_process_counts_for_itself) {
  UsageTable nowhere("/nonexistent/table", kCards);
  CHECK(nowhere.reserve(0, 60));
  CHECK(!nowhere.reserve(0, 60));
  nowhere.give_back(0, 60);
  CHECK(nowhere.reserve(0, 100));
  CHECK(nowhere.problem().find("/nonexistent/table") != std::string::npos);
  CHECK_EQ(nowhere.users(0).size(), std::size_t{1});

  const File file;
  CHECK_EQ(symlink("/dev/null", file.path.c_str()), 0);
  UsageTable link(file.path, kCards);
  CHECK(link.reserve(0, 60));
  CHECK(!link.problem().empty());
}

TEST_MAIN
