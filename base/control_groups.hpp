// The control groups of this process, whose limits hold for it besides those of the machine.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace base {

/// A control group of this process: each hierarchy of groups has one.
struct ControlGroup {
  std::string controllers;  // the hierarchy's controllers, with commas between them; empty in version 2
  std::string path;         // from the root of the hierarchy, for instance "/" or "/user.slice"

  /// Returns whether the group is of version 2, whose one hierarchy is for every controller.
  bool unified() const { return controllers.empty(); }
  /// Returns whether the group is of version 1, and its hierarchy is for `controller`.
  bool has(std::string_view controller) const;
};

/// Returns the control groups of this process. Tests pass `root`, which is put in front of the path of the
/// file that is read.
std::vector<ControlGroup> control_groups(const std::string& root = "");

}  // namespace base
