// The lines of /proc/self/cgroup, of both versions.
#include "base/control_groups.hpp"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/native/check.hpp"

namespace base {
namespace {

std::vector<ControlGroup> groups_of(const std::string& text) {
  std::string root = std::filesystem::temp_directory_path() / "vccl-groups-XXXXXX";
  CHECK(mkdtemp(root.data()) != nullptr);
  std::filesystem::create_directories(root + "/proc/self");
  std::ofstream(root + "/proc/self/cgroup") << text;
  const auto groups = control_groups(root);
  std::filesystem::remove_all(root);
  return groups;
}

TEST(version_2_has_one_group) {
  const auto groups = groups_of("0::/user.slice/a:b\n");
  CHECK_EQ(groups.size(), 1u);
  CHECK(groups[0].unified());
  CHECK(!groups[0].has("cpu"));
  CHECK_EQ(groups[0].path, "/user.slice/a:b");
}

TEST(version_1_has_a_group_for_each_hierarchy) {
  const auto groups = groups_of("3:cpu,cpuacct:/jobs\n2:cpuset:/\n1:name=systemd:/cpu\n");
  CHECK_EQ(groups.size(), 3u);
  CHECK(groups[0].has("cpu") && groups[0].has("cpuacct") && !groups[0].unified());
  CHECK_EQ(groups[0].path, "/jobs");
  CHECK(groups[1].has("cpuset") && !groups[1].has("cpu"));
  CHECK(!groups[2].has("cpu") && !groups[2].has("name") && groups[2].has("name=systemd"));
}

TEST(other_lines_are_left_out) {
  CHECK_EQ(groups_of("nonsense\n1:2\n\n").size(), 0u);
  CHECK_EQ(control_groups("/no/such/folder").size(), 0u);
}

}  // namespace
}  // namespace base

TEST_MAIN
