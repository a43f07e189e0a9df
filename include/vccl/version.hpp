// The version of vccl, for programs in C++ to check (docs/cpp.md).
//
// The header is installed as <vccl/version.hpp> and includes nothing of the project.
#pragma once

/// The version of these headers, which is that of the Python package, too.
#define VCCL_VERSION_MAJOR 0
#define VCCL_VERSION_MINOR 1
#define VCCL_VERSION_PATCH 0

/// Makes one number of a version, so that versions can be compared.
#define VCCL_VERSION(major, minor, patch) ((major) * 10000 + (minor) * 100 + (patch))
/// The version of these headers as one number: `#if VCCL_VERSION_CODE >= VCCL_VERSION(0, 2, 0)`.
#define VCCL_VERSION_CODE VCCL_VERSION(VCCL_VERSION_MAJOR, VCCL_VERSION_MINOR, VCCL_VERSION_PATCH)

namespace vccl {

/// Returns the VCCL_VERSION_CODE of the library that the process has loaded. A program that was compiled with
/// the headers of another release finds a number that differs from its own VCCL_VERSION_CODE.
int version() noexcept;

}  // namespace vccl
