#include "csrc_device/torch/registration.hpp"

#include <stdexcept>
#include <string>

namespace vdev {
namespace {

// It is made at the first error, because other files' static initialisers may run before this file's.
std::string*& first_error() noexcept {
  static std::string* text = nullptr;
  return text;
}

}  // namespace

void registration_failed(const char* what) noexcept {
  // The error of a library that has no memory for a text ends the process here, and would anywhere.
  if (first_error() == nullptr) first_error() = new std::string(what);
}

void check_registrations() {
  if (first_error() != nullptr) throw std::runtime_error(*first_error());
}

}  // namespace vdev
