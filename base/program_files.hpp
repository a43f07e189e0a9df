// Which files of Python belong to the user's program, for messages that name a line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace base {

/// Names folders whose files are not the program's, each with a "/" at its end. Call this before other
/// threads ask.
void set_library_folders(std::vector<std::string> folders);

/// Returns whether the file belongs to none of Python's and its packages' libraries. The names "<string>" and
/// "<stdin>" are the program's.
bool is_of_program(std::string_view file);

}  // namespace base
