#include "sanitizer/memory/footprint.hpp"

#include <algorithm>

namespace sanitizer {

Footprint::Footprint(const void* begin, std::size_t bytes)
    : begin_(reinterpret_cast<std::uintptr_t>(begin)), end_(begin_ + bytes), run_(bytes) {}

Footprint::Footprint(const void* begin, std::size_t item, std::span<const std::int64_t> sizes,
                     std::span<const std::int64_t> strides)
    : begin_(reinterpret_cast<std::uintptr_t>(begin)), end_(begin_), run_(item) {
  bool contiguous = true;
  auto expected = static_cast<std::int64_t>(1);
  for (std::size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 0) {
      run_ = 0;
      return;
    }
    if (sizes[i] == 1) continue;
    contiguous = contiguous && strides[i] == expected;
    expected *= sizes[i];
  }
  if (contiguous) [[likely]] {
    run_ = static_cast<std::size_t>(expected) * item;
    end_ = begin_ + run_;
    return;
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    // With a stride of 0 (expand) all elements are the same one.
    if (sizes[i] > 1 && strides[i] != 0)
      dimensions_.push_back({sizes[i], strides[i] * static_cast<std::int64_t>(item)});
  }
  std::ranges::stable_sort(dimensions_, std::greater{}, &Dimension::stride);
  while (!dimensions_.empty() && dimensions_.back().stride <= static_cast<std::int64_t>(run_)) {
    const Dimension inner = dimensions_.back();
    dimensions_.pop_back();
    run_ = static_cast<std::size_t>((inner.count - 1) * inner.stride) + run_;
  }
  for (std::size_t i = 1; i < dimensions_.size();) {
    Dimension& outer = dimensions_[i - 1];
    const Dimension inner = dimensions_[i];
    if (outer.stride != inner.stride * inner.count) {
      ++i;
      continue;
    }
    outer = {outer.count * inner.count, inner.stride};
    dimensions_.erase(dimensions_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  std::int64_t span = 0;
  for (const Dimension& dimension : dimensions_) span += (dimension.count - 1) * dimension.stride;
  end_ = begin_ + static_cast<std::uintptr_t>(span) + run_;
}

Footprint Footprint::shifted(std::int64_t distance) const {
  Footprint moved = *this;
  moved.begin_ += static_cast<std::uintptr_t>(distance);
  moved.end_ += static_cast<std::uintptr_t>(distance);
  return moved;
}

std::vector<std::int64_t> Footprint::numbers() const {
  std::vector<std::int64_t> all{static_cast<std::int64_t>(begin_), static_cast<std::int64_t>(end_),
                                static_cast<std::int64_t>(run_)};
  for (const Dimension& dimension : dimensions_) {
    all.push_back(dimension.count);
    all.push_back(dimension.stride);
  }
  return all;
}

std::optional<Footprint> Footprint::from_numbers(std::span<const std::int64_t> numbers) {
  if (numbers.size() < 3 || numbers.size() % 2 == 0 || numbers[2] < 0) return std::nullopt;
  Footprint made;
  made.begin_ = static_cast<std::uintptr_t>(numbers[0]);
  made.end_ = static_cast<std::uintptr_t>(numbers[1]);
  made.run_ = static_cast<std::size_t>(numbers[2]);
  for (std::size_t i = 3; i < numbers.size(); i += 2) {
    if (numbers[i] <= 0 || numbers[i + 1] <= 0) return std::nullopt;
    made.dimensions_.push_back({numbers[i], numbers[i + 1]});
  }
  return made;
}

struct Footprint::Part {
  std::span<const Dimension> dimensions;
  std::int64_t run;

  std::int64_t span() const {
    std::int64_t all = run;
    for (const Dimension& dimension : dimensions) all += (dimension.count - 1) * dimension.stride;
    return all;
  }
  bool is_run() const { return dimensions.empty(); }
  const Dimension& outer() const { return dimensions.front(); }
  Part inner() const { return {dimensions.subspan(1), run}; }
};

namespace {

std::int64_t floor_of(std::int64_t a, std::int64_t b) {
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}

}  // namespace

// `b` begins `distance` bytes behind `a`. Where both repeat with the same stride, only the difference of the
// two indices counts, so that two columns of a matrix need one step for each dimension and not one for each
// row.
bool Footprint::meet(Part a, Part b, std::int64_t distance, int& steps) {
  const std::int64_t span_a = a.span(), span_b = b.span();
  if (distance >= span_a || -distance >= span_b) return false;
  if (a.is_run() && b.is_run()) return true;
  if (--steps < 0) return false;
  if (!a.is_run() && !b.is_run() && a.outer().stride == b.outer().stride) {
    const std::int64_t stride = a.outer().stride;
    const std::int64_t first =
        std::max(-(a.outer().count - 1), floor_of(-b.inner().span() - distance, stride) + 1);
    const std::int64_t last =
        std::min(b.outer().count - 1, floor_of(a.inner().span() - distance - 1, stride));
    for (std::int64_t difference = first; difference <= last; ++difference)
      if (meet(a.inner(), b.inner(), distance + difference * stride, steps)) return true;
    return false;
  }
  if (a.is_run() || (!b.is_run() && b.outer().stride > a.outer().stride)) return meet(b, a, -distance, steps);
  const auto [count, stride] = a.outer();
  const std::int64_t first = std::max<std::int64_t>(0, floor_of(distance - a.inner().span(), stride) + 1);
  const std::int64_t last = std::min(count - 1, floor_of(distance + span_b - 1, stride));
  for (std::int64_t i = first; i <= last && steps >= 0; ++i)
    if (meet(a.inner(), b, distance - i * stride, steps)) return true;
  return false;
}

bool Footprint::overlaps(const Footprint& other) const {
  if (empty() || other.empty() || begin_ >= other.end_ || other.begin_ >= end_) return false;
  if (is_contiguous() && other.is_contiguous()) return true;
  int steps = kMostSteps;
  return meet({dimensions_, static_cast<std::int64_t>(run_)},
              {other.dimensions_, static_cast<std::int64_t>(other.run_)},
              static_cast<std::int64_t>(other.begin_ - begin_), steps);
}

bool Footprint::covers(const Footprint& other) const {
  if (other.empty()) return true;
  if (is_contiguous()) return begin_ <= other.begin_ && other.end_ <= end_;
  return begin_ == other.begin_ && run_ == other.run_ && dimensions_ == other.dimensions_;
}

}  // namespace sanitizer
