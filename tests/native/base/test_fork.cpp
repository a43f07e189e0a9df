// What a forked child finds of its parent's objects.
#include "base/fork.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <mutex>

#include "tests/native/check.hpp"

namespace base {
namespace {

/// Whether `holds()` is true in a forked child.
bool in_child(const std::function<bool()>& holds) {
  const pid_t child = fork();
  if (child == 0) _exit(holds() ? 0 : 1);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(a_mark_is_inherited_by_children_alone) {
  const ProcessMark mark;
  CHECK(!mark.inherited());
  CHECK(in_child([&] { return mark.inherited(); }));
  CHECK(in_child([&] {
    const ProcessMark own;
    return !own.inherited() && in_child([&] { return own.inherited() && mark.inherited(); });
  }));
  CHECK(!mark.inherited());
}

struct Registry {
  std::mutex mutex;
  int entries = 0;
};

TEST(a_child_gets_an_object_of_its_own) {
  static OnePerProcess<Registry> one;
  one.get().entries = 3;
  CHECK_EQ(one.get().entries, 3);
  CHECK(&one.get() == &one.get());
  // As another thread of the parent may have held it.
  one.get().mutex.lock();
  CHECK(in_child([&] { return one.get().mutex.try_lock() && one.get().entries == 0; }));
  const auto inherit = [](Registry& own, const Registry& parents) { own.entries = parents.entries + 1; };
  CHECK(in_child([&] { return one.get(inherit).entries == 4 && one.get(inherit).entries == 4; }));
  one.get().mutex.unlock();
}

}  // namespace
}  // namespace base

TEST_MAIN
