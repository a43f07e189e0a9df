#include "csrc_pg/dumps/diagnosis_settings.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include <c10/core/ScalarType.h>

namespace vccl {
namespace {

const char* python_name(std::uint8_t dtype) {
  if (dtype >= static_cast<std::uint8_t>(c10::ScalarType::NumOptions)) return nullptr;
  static const auto names = [] {
    std::array<std::string, static_cast<std::size_t>(c10::ScalarType::NumOptions)> all;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto type = static_cast<c10::ScalarType>(i);
      try {
        all[i] = c10::getDtypeNames(type).first;
      } catch (const std::exception&) {
        all[i] = c10::toString(type);  // a type that Python has no name for
      }
    }
    return all;
  }();
  return names[dtype].c_str();
}

}  // namespace

DiagnosisOptions diagnosis_options() {
  DiagnosisOptions options;
  options.dtype_name = &python_name;
  return options;
}

}  // namespace vccl
