// VDEV_LAUNCH_BLOCKING=1: every enqueue synchronises, and raises.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <stdexcept>

#include "csrc_device/runtime/stream.hpp"
#include "tests/native/check.hpp"
#include "tests/native/runtime/gate.hpp"
#include "tests/native/runtime/suppressions.hpp"

using vdev::Stream;

TEST(enqueue_runs_the_task_before_it_returns) {
  Stream stream(-1, 1, 0, "test");
  int ran = 0;
  stream.enqueue([&] { ++ran; });
  CHECK_EQ(ran, 1);
  CHECK(stream.idle());
}

TEST(enqueue_raises_what_the_task_throws) {
  Stream stream(-1, 1, 0, "test");
  CHECK_THROWS(stream.enqueue([] { throw std::logic_error("boom"); }), std::logic_error);
  CHECK_THROWS(stream.synchronize(), std::logic_error);  // as long as nobody clears it
  vdev::program_errors().settle();
  stream.synchronize();
}

TEST(enqueue_inside_a_task_does_not_wait_for_itself) {
  Stream stream(-1, 1, 0, "test");
  std::atomic<int> ran{0};
  stream.enqueue([&] { stream.enqueue([&] { ++ran; }); });
  CHECK(eventually([&] { return ran == 1; }));  // by the worker: nobody waits
}

int main(int argc, char** argv) {
  setenv("VDEV_LAUNCH_BLOCKING", "1", 1);  // before the environment is first read
  return check::run(argc, argv);
}
