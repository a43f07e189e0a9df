#include "base/control_groups.hpp"

#include <fstream>

namespace base {

bool ControlGroup::has(std::string_view controller) const {
  std::string_view rest = controllers;
  while (!rest.empty()) {
    const auto comma = rest.find(',');
    if (rest.substr(0, comma) == controller) return true;
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
  }
  return false;
}

std::vector<ControlGroup> control_groups(const std::string& root) {
  std::vector<ControlGroup> groups;
  std::ifstream file(root + "/proc/self/cgroup");
  // A line is number:controllers:path. Version 2 has the number 0 and no controllers. A path may have colons.
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    groups.push_back({line.substr(first + 1, second - first - 1), line.substr(second + 1)});
  }
  return groups;
}

}  // namespace base
