#include "base/program_files.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace base {
namespace {

// Inductor writes the code that it generates into a folder torchinductor_USER.
constexpr std::array<std::string_view, 4> kOfLibraries = {"/site-packages/", "/dist-packages/",
                                                          "/lib/python3.", "/torchinductor_"};

std::vector<std::string>& library_folders() {
  static std::vector<std::string> folders;
  return folders;
}

}  // namespace

void set_library_folders(std::vector<std::string> folders) {
  library_folders() = std::move(folders);
}

bool is_of_program(std::string_view file) {
  if (file.starts_with('<') && file != "<string>" && file != "<stdin>") return false;
  const auto within = [&](std::string_view part) { return file.find(part) != std::string_view::npos; };
  return std::ranges::none_of(kOfLibraries, within) &&
         std::ranges::none_of(library_folders(),
                              [&](const auto& folder) { return file.starts_with(folder); });
}

}  // namespace base
