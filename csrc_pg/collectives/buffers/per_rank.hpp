// One value for each rank, for as long as a call takes.
#pragma once

#include <cstddef>
#include <memory>

namespace vccl {

/// An array with an entry for each rank, in the order in which they were added. Small groups need no
/// allocation, which would take a noticeable part of a call of a microsecond.
template <class T>
class PerRank {
 public:
  explicit PerRank(int capacity) {
    if (capacity > kFew) many_ = std::make_unique<T[]>(static_cast<std::size_t>(capacity));
  }

  /// Adds an entry. May be called at most `capacity` times.
  void add(const T& value) { data()[size_++] = value; }
  T& operator[](int rank) { return data()[rank]; }
  const T& operator[](int rank) const { return data()[rank]; }
  T* data() { return many_ ? many_.get() : few_; }
  const T* data() const { return many_ ? many_.get() : few_; }
  std::size_t size() const { return size_; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }

 private:
  static constexpr int kFew = 16;
  T few_[kFew];
  std::unique_ptr<T[]> many_;
  std::size_t size_ = 0;
};

}  // namespace vccl
