// The memory that a control group leaves to this process, read from folders that look like /proc and /sys.
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "csrc_device/runtime/memory/memory_limit.hpp"
#include "tests/native/check.hpp"

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;
const std::string kUnlimited = "9223372036854771712";  // what version 1 writes

/// A machine whose files are those that were put there.
class Machine {
 public:
  Machine() {
    char name[] = "/tmp/vccl_machine_XXXXXX";
    if (!mkdtemp(name)) throw std::runtime_error("mkdtemp");
    root_ = name;
  }
  ~Machine() { std::filesystem::remove_all(root_); }

  Machine& put(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
    return *this;
  }
  std::size_t limit() const { return vdev::cgroup_memory_limit(root_); }
  vdev::MachineRoom room() const { return vdev::machine_room(root_); }

 private:
  std::string root_;
};

}  // namespace

TEST(no_control_group) {
  CHECK_EQ(Machine().limit(), std::size_t{SIZE_MAX});
  CHECK_EQ(Machine().put("/proc/self/cgroup", "0::/").limit(), std::size_t{SIZE_MAX});
  CHECK_EQ(Machine().put("/proc/self/cgroup", "nonsense\n1:2\n\n::").limit(), std::size_t{SIZE_MAX});
}

TEST(version_2) {
  Machine machine;
  machine.put("/proc/self/cgroup", "0::/system.slice/job.scope");
  machine.put("/sys/fs/cgroup/system.slice/job.scope/memory.max", "max");
  CHECK_EQ(machine.limit(), std::size_t{SIZE_MAX});
  machine.put("/sys/fs/cgroup/system.slice/job.scope/memory.max", "4294967296");
  CHECK_EQ(machine.limit(), 4 * kGiB);
}

TEST(the_least_of_the_groups_above_counts) {
  Machine machine;
  machine.put("/proc/self/cgroup", "0::/a/b/c");
  machine.put("/sys/fs/cgroup/a/b/c/memory.max", "4294967296");
  machine.put("/sys/fs/cgroup/a/b/memory.max", "max");
  machine.put("/sys/fs/cgroup/a/memory.max", "1073741824");
  CHECK_EQ(machine.limit(), kGiB);
  machine.put("/sys/fs/cgroup/memory.max", "536870912");  // a container whose root is its own group
  CHECK_EQ(machine.limit(), 512 * kMiB);
}

TEST(a_container_sees_its_own_group_at_the_root) {
  Machine second;
  second.put("/proc/self/cgroup", "0::/").put("/sys/fs/cgroup/memory.max", "2147483648");
  CHECK_EQ(second.limit(), 2 * kGiB);
  // Without a namespace the path is the host's, which the container does not have.
  Machine first;
  first.put("/proc/self/cgroup", "12:pids:/docker/123\n9:memory:/docker/123\n0::/docker/123");
  first.put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648");
  CHECK_EQ(first.limit(), 2 * kGiB);
}

TEST(version_1) {
  Machine machine;
  machine.put("/proc/self/cgroup", "3:cpu,cpuacct:/jobs\n2:hugetlb,memory:/jobs/7\n1:name=systemd:/memory");
  machine.put("/sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", kUnlimited);
  machine.put("/sys/fs/cgroup/memory/memory.limit_in_bytes", kUnlimited);
  CHECK(machine.limit() > (std::size_t{1} << 60));
  machine.put("/sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "3221225472");
  CHECK_EQ(machine.limit(), 3 * kGiB);
}

TEST(both_versions) {
  Machine machine;
  machine.put("/proc/self/cgroup", "4:memory:/x\n0::/y");
  machine.put("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "3221225472");
  machine.put("/sys/fs/cgroup/unified/y/memory.max", "max");
  CHECK_EQ(machine.limit(), 3 * kGiB);
  machine.put("/sys/fs/cgroup/unified/y/memory.max", "1073741824");
  CHECK_EQ(machine.limit(), kGiB);
}

TEST(this_machine) {
  const auto pages = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES));
  const auto ram = pages * static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
  CHECK(vdev::usable_memory() <= ram);
  CHECK(vdev::usable_memory() > 0);
  CHECK(vdev::usable_memory() <= vdev::cgroup_memory_limit());
}

TEST(ranks_share_the_memory) {
  CHECK_EQ(vdev::default_capacity(64 * kGiB, 1), 62 * kGiB);
  CHECK_EQ(vdev::default_capacity(64 * kGiB, 8), 7 * kGiB);
  CHECK_EQ(vdev::default_capacity(4 * kGiB, 1), 3584 * kMiB);
  CHECK_EQ(vdev::default_capacity(4 * kGiB, 2), 1536 * kMiB);
  CHECK_EQ(vdev::default_capacity(2 * kGiB, 4), 256 * kMiB);  // half is left where there is little
  for (const std::size_t usable : {256 * kMiB, 4 * kGiB, 100 * kGiB}) {
    for (const int ranks : {1, 2, 3, 8, 64}) {
      CHECK(vdev::default_capacity(usable, ranks) * static_cast<std::size_t>(ranks) < usable);
    }
  }
}

TEST(what_the_machine_has_left) {
  Machine machine;
  CHECK_EQ(machine.room().bytes, std::size_t{SIZE_MAX});
  machine.put("/proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable:    2048 kB\nSwapFree:   1024 kB");
  CHECK_EQ(machine.room().bytes, 3 * kMiB);
  CHECK(machine.room().limit.find("MemAvailable") != std::string::npos);
}

TEST(what_a_group_of_version_2_has_left) {
  Machine machine;
  machine.put("/proc/meminfo", "MemAvailable: 1048576 kB\nSwapFree: 10240 kB");
  machine.put("/proc/self/cgroup", "0::/job");
  machine.put("/sys/fs/cgroup/job/memory.max", std::to_string(100 * kMiB));
  machine.put("/sys/fs/cgroup/job/memory.current", std::to_string(70 * kMiB));
  machine.put("/sys/fs/cgroup/job/memory.stat",
              "anon 1\ninactive_file 3145728\nactive_file 2097152\nslab 7");  // 5 MiB
  machine.put("/sys/fs/cgroup/job/memory.swap.max", "0");
  machine.put("/sys/fs/cgroup/job/memory.swap.current", "0");
  CHECK_EQ(machine.room().bytes, 35 * kMiB);
  CHECK(machine.room().limit.ends_with("/sys/fs/cgroup/job/memory.max"));
  machine.put("/sys/fs/cgroup/job/memory.swap.max", "max");
  CHECK_EQ(machine.room().bytes, 45 * kMiB);
}

TEST(what_a_group_of_version_1_has_left) {
  Machine machine;
  machine.put("/proc/meminfo", "MemAvailable: 1048576 kB\nSwapFree: 10240 kB");
  machine.put("/proc/self/cgroup", "4:memory:/docker/id");
  machine.put("/sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(100 * kMiB));
  machine.put("/sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(90 * kMiB));
  machine.put("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file 1048576\ntotal_active_file 1048576");
  CHECK_EQ(machine.room().bytes, 22 * kMiB);
  machine.put("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", std::to_string(100 * kMiB));
  machine.put("/sys/fs/cgroup/memory/memory.memsw.usage_in_bytes", std::to_string(90 * kMiB));
  CHECK_EQ(machine.room().bytes, 12 * kMiB);
}

TEST_MAIN
