#include "transport/group.hpp"

#include "transport/wait.hpp"

namespace vccl {

void Group::wake_others() const noexcept {
  for (int i = 0; i < static_cast<int>(host.ranks.size()); ++i) {
    if (i != host.index) wake(host.line(i));
  }
}

void Group::fail(ErrorCode code, const std::string& what) const noexcept {
  if (!failure().record(code, what)) return;
  log.warn(std::string(to_string(code)) + ": " + what);
  for (int i = 0; i < static_cast<int>(host.ranks.size()); ++i) wake(host.line(i));
  for (std::size_t i = 0; i < host.ranks.size(); ++i) wake_messages(host.messages().line(i), true);
  if (spread_failure) spread_failure();
}

void Group::raise(ErrorCode code, const std::string& what) const {
  fail(code, what);
  throw failure().error();
}

std::string Group::describe_signature(const Signature& signature) const {
  if (describe) return describe(signature);
  return "collective " + std::to_string(signature.collective) + "(dtype " + std::to_string(signature.dtype) +
         ", " + std::to_string(signature.count) + " elements, op " + std::to_string(signature.op) +
         ", root " + std::to_string(signature.root) + ", extra " + std::to_string(signature.extra) + ")";
}

std::string Group::operation_text() const {
  const std::uint64_t number = sequence.load(std::memory_order_relaxed);
  if (number == 0) return "the meeting of group " + name;
  return describe_signature(signature) + " (operation " + std::to_string(number) + " of group " + name + ")";
}

std::string numbers_text(std::span<const int> numbers) {
  std::string text;
  for (int number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

std::string ranks_text(std::span<const int> ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + numbers_text(ranks);
}

std::string duration_text(Milliseconds length) {
  const auto count = length.count();
  if (count < 1000) return std::to_string(count) + " ms";
  std::string text = std::to_string(count / 1000);
  if (count % 1000 >= 100) text += "." + std::to_string(count % 1000 / 100);
  return text + " s";
}

}  // namespace vccl
