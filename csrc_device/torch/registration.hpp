// Tells torch of the cards while the library is loaded, so that an error there does not end the process.
//
// An exception that leaves a static initialiser ends the process, and `import torch` loads this library. So
// such an initialiser registers an object of one of these classes, which keep the error.
// check_registrations() raises it where somebody can handle it.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>

#include <torch/library.h>

namespace vdev {

/// Keeps the error of a registration, of which the first one counts.
void registration_failed(const char* what) noexcept;

/// Throws a std::runtime_error with the first error that was kept, if there is one.
void check_registrations();

/// Calls a function, and keeps the error that it throws.
class Registration {
 public:
  template <class Function>
  explicit Registration(Function function) noexcept {
    try {
      function();
    } catch (const std::exception& error) {
      registration_failed(error.what());
    } catch (...) {
      registration_failed("an exception of an unknown type");
    }
  }
};

/// Holds the kernels that a function registers, or keeps its error and holds none.
class LibraryRegistration {
 public:
  LibraryRegistration(torch::Library::Kind kind, void (*function)(torch::Library&), const char* ns,
                      std::optional<c10::DispatchKey> key, const char* file, std::uint32_t line) noexcept
      : registration_([&] { library_.emplace(kind, function, ns, key, file, line); }) {}

 private:
  std::optional<torch::detail::TorchLibraryInit> library_;
  Registration registration_;
};

}  // namespace vdev

/// Defines a function that registers kernels for operators of the namespace `ns` under the dispatch key
/// `key`, an expression that is evaluated when the module is loaded. The function's argument is the
/// torch::Library `m`. It stands for TORCH_LIBRARY_IMPL, whose key is fixed when it is compiled.
#define VDEV_LIBRARY_IMPL(ns, key, m) VDEV_LIBRARY_OF_KIND(IMPL, ns, key, m, C10_UID)
/// Stands for TORCH_LIBRARY: the function defines the operators of the namespace `ns`.
#define VDEV_LIBRARY(ns, m) VDEV_LIBRARY_OF_KIND(DEF, ns, std::nullopt, m, C10_UID)
#define VDEV_LIBRARY_OF_KIND(kind, ns, key, m, number)                                                  \
  static void C10_CONCATENATE(register_kernels_, number)(torch::Library&);                              \
  static const ::vdev::LibraryRegistration C10_CONCATENATE(registered_kernels_, number)(                \
      torch::Library::kind, &C10_CONCATENATE(register_kernels_, number), #ns, key, __FILE__, __LINE__); \
  void C10_CONCATENATE(register_kernels_, number)(torch::Library & m)
