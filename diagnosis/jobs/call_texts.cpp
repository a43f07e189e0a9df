#include "diagnosis/jobs/call_texts.hpp"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "base/text.hpp"
#include "diagnosis/jobs/frames.hpp"
#include "diagnosis/jobs/job_table.hpp"

namespace vccl {

std::string place_text(const JobRank& rank, std::size_t entry) {
  if (entry >= rank.snapshot.stacks.size()) return {};
  std::istringstream lines(rank.snapshot.stacks[entry]);
  Frame frame, first;
  std::string line;
  while (std::getline(lines, frame.function, '\t') && std::getline(lines, frame.file, '\t') &&
         std::getline(lines, line)) {
    frame.file = base::valid_text(frame.file);
    frame.function = base::valid_text(frame.function);
    frame.line = static_cast<int>(std::strtol(line.c_str(), nullptr, 10));
    if (is_own(frame)) return base::text(", in ", frame_text(frame));
    if (first.file.empty()) first = frame;
  }
  return first.file.empty() ? "" : base::text(", in ", frame_text(first));
}

std::string unique_name(const Job& job, const JobGroup& group) {
  const std::string& name = name_of(group);
  const auto same =
      std::ranges::count_if(job.groups, [&](const auto& other) { return name_of(other) == name; });
  return same > 1 ? base::text(name, " (", group.name, ")") : name;
}

}  // namespace vccl
