// Puts functions of this project in the place of calls of the system that libzmq makes.
#pragma once

namespace vccl::link_faults {

/// Lets the loaded libzmq call `replacement` where it calls the C library's function `name`, from now on and
/// for good. Returns false if libzmq has no such call, or does not let itself be changed.
///
/// A library calls functions of others through a table of their addresses. This changes the entries of that
/// name, as the dynamic linker does when it loads the library. Other libraries have tables of their own.
bool replace_call(const char* name, void* replacement);

}  // namespace vccl::link_faults
