#include "base/process.hpp"

#include <charconv>
#include <sstream>
#include <string>

#include "base/files.hpp"
#include "base/text.hpp"

namespace base {

std::optional<pid_t> process_number(std::string_view name) {
  pid_t number = 0;
  const char* end = name.data() + name.size();
  const auto [stopped, wrong] = std::from_chars(name.data(), end, number);
  return wrong == std::errc() && stopped == end ? std::optional(number) : std::nullopt;
}

ProcessStatus status_of(pid_t pid) {
  const std::string line = first_line(text("/proc/", pid, "/stat"));
  // The second field is the name, in parentheses. It may have spaces and parentheses itself.
  const auto end = line.rfind(')');
  if (end == std::string::npos) return {};
  std::istringstream fields(line.substr(end + 1));
  ProcessStatus status;
  std::string skipped;
  fields >> status.state >> status.parent;
  for (int field = 5; field < 22; ++field) fields >> skipped;
  if (!(fields >> status.start)) return {};
  return status;
}

std::uint64_t birth_of(pid_t pid) {
  if (pid <= 0) return 0;
  const ProcessStatus status = status_of(pid);
  return status.state == 'Z' || status.state == 'X' ? 0 : status.start + 1;
}

}  // namespace base
