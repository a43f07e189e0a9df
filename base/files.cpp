#include "base/files.hpp"

#include <fstream>

namespace base {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace base
