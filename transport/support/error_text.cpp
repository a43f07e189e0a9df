#include "transport/support/error_text.hpp"

#include "base/text.hpp"

namespace vccl {

std::string numbers_text(std::span<const int> numbers) {
  std::string text;
  for (int number : numbers) text += base::text(text.empty() ? "" : ", ", number);
  return text;
}

std::string duration_text(Milliseconds length) {
  const auto count = length.count();
  if (count < 1000) return base::text(count, " ms");
  const auto tenths = count % 1000 / 100;
  return tenths == 0 ? base::text(count / 1000, " s") : base::text(count / 1000, ".", tenths, " s");
}

}  // namespace vccl
