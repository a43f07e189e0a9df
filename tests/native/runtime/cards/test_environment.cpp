// Parsing of the VDEV_* variables.
#include <map>
#include <string>
#include <vector>

#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/runtime/error.hpp"
#include "tests/native/check.hpp"

using vdev::InvalidArgument;

namespace {

vdev::Environment parse(const std::map<std::string, std::string>& variables) {
  return vdev::parse_environment([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string visible(const std::string& value, const std::string& count = "4") {
  std::string text;
  for (const int card : parse({{"VDEV_VISIBLE_DEVICES", value}, {"VDEV_DEVICE_COUNT", count}}).visible)
    text += std::to_string(card) + " ";
  return text;
}

std::size_t memory(const std::string& value) {
  return parse({{"VDEV_MEMORY", value}}).memory;
}

std::string refusal(const std::string& name, const std::string& value) {
  try {
    parse({{name, value}});
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "";
}

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;

}  // namespace

TEST(defaults) {
  const auto e = parse({});
  CHECK_EQ(e.device_count, 8);
  CHECK_EQ(e.visible.size(), std::size_t{8});
  CHECK_EQ(e.visible[7], 7);
  CHECK(e.memory >= 16 * kMiB);
  CHECK(!e.launch_blocking);
}

TEST(device_count) {
  CHECK_EQ(parse({{"VDEV_DEVICE_COUNT", "3"}}).visible.size(), std::size_t{3});
  CHECK_EQ(parse({{"VDEV_DEVICE_COUNT", " 64 "}}).device_count, 64);
  for (const char* bad : {"0", "65", "-1", "x", "", "2.5", "3 4", "99999999999999"}) {
    const auto text = refusal("VDEV_DEVICE_COUNT", bad);
    CHECK(text.find("VDEV_DEVICE_COUNT='" + std::string(bad) + "'") != std::string::npos);
    CHECK(text.find("1 to 64") != std::string::npos);
  }
}

TEST(visible_devices_follow_cuda) {
  CHECK_EQ(visible("2,0"), std::string("2 0 "));
  CHECK_EQ(visible(" 3 , 1 "), std::string("3 1 "));
  CHECK_EQ(visible(""), std::string(""));
  CHECK_EQ(visible("1,-1,2"), std::string("1 "));
  CHECK_EQ(visible("-1"), std::string(""));
  CHECK_EQ(visible("0,4,1"), std::string("0 "));
  CHECK_EQ(visible("0,x,1"), std::string("0 "));
  CHECK_EQ(visible("0,,1"), std::string("0 "));
  CHECK_EQ(visible("0,1,0"), std::string(""));
  CHECK_EQ(visible("0,1,"), std::string("0 1 "));
}

TEST(memory_sizes) {
  CHECK_EQ(memory("512M"), 512 * kMiB);
  CHECK_EQ(memory("4G"), 4 * kGiB);
  CHECK_EQ(memory("1.5G"), kGiB + kGiB / 2);
  CHECK_EQ(memory("4gib"), 4 * kGiB);
  CHECK_EQ(memory("4 GB"), 4 * kGiB);
  CHECK_EQ(memory("1T"), 1024 * kGiB);
  CHECK_EQ(memory("65536K"), 64 * kMiB);
  CHECK_EQ(memory("67108864"), 64 * kMiB);
  CHECK_EQ(memory("67108864B"), 64 * kMiB);
  CHECK_EQ(memory(" 16M "), 16 * kMiB);
}

TEST(default_memory_is_shared_by_the_ranks_of_the_machine) {
  const std::size_t alone = parse({}).memory;
  CHECK_EQ(parse({}).machine_ranks, 1);
  CHECK_EQ(parse({{"LOCAL_WORLD_SIZE", "4"}}).machine_ranks, 4);
  CHECK(parse({{"LOCAL_WORLD_SIZE", "4"}}).memory < alone / 2);
  // vrun's own word, with all pretended hosts, comes first.
  CHECK_EQ(parse({{"LOCAL_WORLD_SIZE", "4"}, {"VDEV_MACHINE_RANKS", "8"}}).machine_ranks, 8);
  CHECK_EQ(parse({{"LOCAL_WORLD_SIZE", "x"}}).machine_ranks, 1);
  CHECK_EQ(parse({{"LOCAL_WORLD_SIZE", "0"}}).machine_ranks, 1);
  CHECK_EQ(parse({{"LOCAL_WORLD_SIZE", "4"}, {"VDEV_MEMORY", "4G"}}).memory, 4 * kGiB);
  for (const char* bad : {"", "0", "-1", "x", "1.5", "65537"}) {
    CHECK(refusal("VDEV_MACHINE_RANKS", bad).find("VDEV_MACHINE_RANKS='" + std::string(bad) + "'") !=
          std::string::npos);
  }
}

TEST(bad_memory_sizes) {
  for (const char* bad :
       {"", "G", "x", "-4G", "4X", "4GG", "4Gi", "4 G 2", "1e9", "nan", "inf", "15M", "0", "17T"}) {
    CHECK(refusal("VDEV_MEMORY", bad).find("VDEV_MEMORY='" + std::string(bad) + "'") != std::string::npos);
  }
}

TEST(launch) {
  CHECK(parse({}).launch_async && !parse({}).launch_trace);
  CHECK(parse({{"VDEV_LAUNCH", "async"}}).launch_async);
  CHECK(!parse({{"VDEV_LAUNCH", "blocking"}}).launch_async);
  CHECK(refusal("VDEV_LAUNCH", "later").find("async or blocking") != std::string::npos);
  CHECK(parse({{"VDEV_LAUNCH_TRACE", "1"}}).launch_trace);
  CHECK(refusal("VDEV_LAUNCH_TRACE", "on").find("0 or 1") != std::string::npos);
}

TEST(strict) {
  CHECK(!parse({}).strict);
  CHECK(parse({{"VDEV_STRICT", "1"}}).strict);
  CHECK(refusal("VDEV_STRICT", "very").find("0 or 1") != std::string::npos);
}

TEST(launch_blocking) {
  CHECK(parse({{"VDEV_LAUNCH_BLOCKING", "1"}}).launch_blocking);
  CHECK(!parse({{"VDEV_LAUNCH_BLOCKING", "0"}}).launch_blocking);
  CHECK(!parse({{"VDEV_LAUNCH_BLOCKING", ""}}).launch_blocking);
  CHECK(refusal("VDEV_LAUNCH_BLOCKING", "yes").find("0 or 1") != std::string::npos);
}

TEST(pose) {
  CHECK(parse({}).pose == vdev::Pose::vdev);
  CHECK(parse({{"VDEV_POSE", ""}}).pose == vdev::Pose::vdev);
  CHECK(parse({{"VDEV_POSE", "cuda"}}).pose == vdev::Pose::cuda);
  CHECK(refusal("VDEV_POSE", "rocm").find("VDEV_POSE='rocm'") != std::string::npos);
}

TEST(variables_of_cuda_count_in_pose) {
  using Cards = std::vector<int>;
  CHECK(parse({{"VDEV_POSE", "cuda"}, {"CUDA_VISIBLE_DEVICES", "2,0"}}).visible == Cards({2, 0}));
  CHECK_EQ(parse({{"CUDA_VISIBLE_DEVICES", "2,0"}}).visible.size(), std::size_t{8});
  CHECK(
      parse({{"VDEV_POSE", "cuda"}, {"CUDA_VISIBLE_DEVICES", "2"}, {"VDEV_VISIBLE_DEVICES", "1"}}).visible ==
      Cards({1}));
  CHECK(parse({{"VDEV_POSE", "cuda"}, {"CUDA_LAUNCH_BLOCKING", "1"}}).launch_blocking);
  CHECK(!parse({{"CUDA_LAUNCH_BLOCKING", "1"}}).launch_blocking);
}

TEST(profile) {
  CHECK(parse({}).profile == nullptr);
  const auto h100 = parse({{"VDEV_PROFILE", "h100-80g"}});
  CHECK_EQ(h100.profile->major, 9);
  CHECK_EQ(h100.memory, h100.profile->memory);
  CHECK_EQ(parse({{"VDEV_PROFILE", "l4"}, {"VDEV_MEMORY", "4G"}}).memory, 4 * kGiB);
  CHECK(refusal("VDEV_PROFILE", "h1000").find("expected one of v100-32g, t4") != std::string::npos);
}

TEST(profiler_activities) {
  CHECK_EQ(parse({}).profiler_activities, 500'000);
  CHECK_EQ(parse({{"VDEV_PROFILER_ACTIVITIES", " 7 "}}).profiler_activities, 7);
  for (const char* bad : {"0", "-1", "1e6", "100000001", ""})
    CHECK(refusal("VDEV_PROFILER_ACTIVITIES", bad).find("from 1 to 100000000") != std::string::npos);
}

TEST(first_use_file) {
  CHECK_EQ(parse({}).first_use_file, std::string());
  CHECK_EQ(parse({{"VDEV_FIRST_USE_FILE", "/tmp/a b"}}).first_use_file, std::string("/tmp/a b"));
}

TEST(processes_share_cards_of_one_capacity_and_host) {
  CHECK_EQ(parse({{"VDEV_MEMORY", "1G"}, {"LOCAL_WORLD_SIZE", "8"}}).card_memory, kGiB);
  CHECK_EQ(parse({{"VDEV_PROFILE", "t4"}}).card_memory, parse({{"VDEV_PROFILE", "t4"}}).memory);
  // Ranks that all use one card may each take their share of the machine, as without the others.
  CHECK_EQ(parse({{"LOCAL_WORLD_SIZE", "8"}}).card_memory, parse({}).memory);
  CHECK(parse({{"VDEV_HOSTID", "a"}}).host_id != parse({}).host_id);
  CHECK(parse({{"VDEV_HOSTID", "a"}}).host_id != parse({{"VCCL_HOSTID", "a"}}).host_id);
}

TEST_MAIN
