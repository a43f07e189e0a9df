#include "base/process.hpp"

#include <sstream>
#include <string>

#include "base/files.hpp"
#include "base/text.hpp"

namespace base {

std::uint64_t birth_of(pid_t pid) {
  if (pid <= 0) return 0;
  const std::string line = first_line(text("/proc/", pid, "/stat"));
  // The second field is the name, in parentheses. It may have spaces and parentheses itself.
  const auto end = line.rfind(')');
  if (end == std::string::npos) return 0;
  std::istringstream fields(line.substr(end + 1));
  char state = 0;
  fields >> state;
  if (state == 'Z' || state == 'X') return 0;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  std::uint64_t start = 0;
  return fields >> start ? start + 1 : 0;
}

}  // namespace base
