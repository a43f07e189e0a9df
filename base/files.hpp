// Reading the small text files in which the system tells about itself.
#pragma once

#include <fstream>
#include <string>

namespace base {

/// Returns the first line of a file without its end. Returns an empty text if there is no such file.
inline std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace base
