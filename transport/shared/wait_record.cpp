#include "transport/shared/wait_record.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/text.hpp"

namespace vccl {

namespace {

constexpr std::size_t kMostInText = 4;  // ranks
constexpr std::uint32_t kMostCallsInText = 2;

}  // namespace

std::string PublishedWait::to_string() const {
  return std::string(text.data(), std::min<std::size_t>(length, kMaxText));
}

void WaitRecord::write(std::uint64_t version, const PublishedWaits& waits) noexcept {
  std::array<std::uint64_t, kWords> words;
  std::memcpy(words.data(), &waits, sizeof waits);
  version_.store(version - 1, std::memory_order_relaxed);
  for (std::size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
  looks_.store(0, std::memory_order_release);
  concluded_.store(0, std::memory_order_release);
  version_.store(version, std::memory_order_release);
}

WaitRecord::Copy WaitRecord::read() const noexcept {
  Copy copy;
  const std::uint64_t version = version_.load(std::memory_order_acquire);
  if (version == 0 || version % 2 != 0) return copy;
  std::array<std::uint64_t, kWords> words;
  for (std::size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
  const std::uint64_t looks = looks_.load(std::memory_order_acquire);
  const bool concluded = concluded_.load(std::memory_order_acquire) != 0;
  if (version_.load(std::memory_order_relaxed) != version) return copy;
  std::memcpy(&copy.waits, words.data(), sizeof copy.waits);
  copy.waits.count = std::min<std::uint32_t>(copy.waits.count, PublishedWaits::kMax);
  for (auto& wait : copy.waits.waits)
    wait.awaited_count = std::min<std::uint32_t>(wait.awaited_count, PublishedWait::kMaxAwaited);
  copy.version = version;
  copy.looks = looks;
  copy.concluded = concluded;
  return copy;
}

std::string calls_text(const std::set<std::uint64_t>& members,
                       const std::map<std::uint64_t, WaitRecord::Copy>& records) {
  std::vector<std::pair<std::uint64_t, std::string>> calls;
  for (const std::uint64_t token : members) {
    const PublishedWaits& waits = records.at(token).waits;
    std::string text;
    for (std::uint32_t i = 0; i < std::min(waits.count, kMostCallsInText); ++i)
      text += (text.empty() ? "" : " and ") + waits.waits[i].to_string();
    if (waits.count > kMostCallsInText) text += base::text(" and ", waits.count - kMostCallsInText, " more");
    calls.emplace_back(waits.rank, text);
  }
  std::sort(calls.begin(), calls.end());
  std::string result;
  for (std::size_t i = 0; i < std::min(calls.size(), kMostInText); ++i)
    result += base::text(i == 0 ? "rank " : "; rank ", calls[i].first, ": ", calls[i].second);
  if (calls.size() > kMostInText) result += base::text("; and ", calls.size() - kMostInText, " more ranks");
  return result;
}

}  // namespace vccl
