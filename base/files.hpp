// Reading the small text files in which the system tells about itself.
#pragma once

#include <dirent.h>

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

/// Calls `take` with the folder's descriptor and the name of each entry. Does nothing if the folder cannot be
/// read: in /proc, the process may have ended.
template <class Take>
void for_each_entry(const char* folder, const Take& take) {
  DIR* opened = ::opendir(folder);
  if (!opened) return;
  while (const dirent* entry = ::readdir(opened)) take(::dirfd(opened), entry->d_name);
  ::closedir(opened);
}

}  // namespace base
