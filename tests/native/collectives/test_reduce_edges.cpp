// Runs reductions of every short length between pages that fault, since a sanitizer does not see the
// instructions that move a part of a vector.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "csrc_pg/collectives/kernels/reduction.hpp"
#include "tests/native/check.hpp"
#include "tests/native/collectives/cases.hpp"

using namespace vccl;

namespace {

/// A page with unmapped memory before and behind it.
class Page {
 public:
  Page() : size_(std::size_t(sysconf(_SC_PAGESIZE))) {
    void* const all = mmap(nullptr, 3 * size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(all != MAP_FAILED);
    all_ = static_cast<std::byte*>(all);
    CHECK_EQ(mprotect(all_ + size_, size_, PROT_READ | PROT_WRITE), 0);
  }
  ~Page() { munmap(all_, 3 * size_); }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  /// Returns the first or the last `bytes` of the page, and sets all others to 0x55.
  std::byte* place(std::size_t bytes, bool last) {
    std::memset(all_ + size_, 0x55, size_);
    used_ = bytes;
    at_ = last ? size_ - bytes : 0;
    return all_ + size_ + at_;
  }
  bool others_are_untouched() const {
    for (std::size_t i = 0; i < size_; ++i)
      if ((i < at_ || i >= at_ + used_) && all_[size_ + i] != std::byte(0x55)) return false;
    return true;
  }

 private:
  const std::size_t size_;
  std::byte* all_ = nullptr;
  std::size_t used_ = 0, at_ = 0;
};

using Bytes = std::vector<std::byte>;
constexpr std::size_t kRanks = 3;

struct Edges {
  Page inputs[kRanks], result;
  std::mt19937_64 random{5};

  /// Returns numbers below 2 in every format of floats: bit 6 of a byte is the exponent's highest.
  Bytes numbers(std::size_t bytes) {
    Bytes values(bytes);
    for (auto& value : values) value = std::byte(random() & 0xbf);
    return values;
  }

  /// Calls `run(out, inputs)` with buffers between faulting pages. Returns where the result is.
  template <class F>
  const std::byte* guarded(F run, const std::vector<Bytes>& values, std::size_t result_bytes, bool last) {
    const std::byte* pointers[kRanks];
    for (std::size_t rank = 0; rank < values.size(); ++rank) {
      auto* const at = inputs[rank].place(values[rank].size(), last);
      std::copy(values[rank].begin(), values[rank].end(), at);
      pointers[rank] = at;
    }
    auto* const out = result.place(result_bytes, last);
    run(out, pointers);
    CHECK(result.others_are_untouched());
    return out;
  }
  template <class F>
  static Bytes plain(F run, const std::vector<Bytes>& values, std::size_t result_bytes) {
    const std::byte* pointers[kRanks];
    for (std::size_t rank = 0; rank < values.size(); ++rank) pointers[rank] = values[rank].data();
    Bytes out(result_bytes);
    run(out.data(), pointers);
    return out;
  }

  void operator()(Dtype dtype, ReduceOp op, std::size_t count) {
    const double scalar = op == ReduceOp::premul_sum ? 0.5 : double(kRanks);
    const double scalars[kRanks] = {scalar, scalar, scalar};
    const auto many = [&](const Reduction& loops) {
      return [&](std::byte* out, const std::byte* const* in) {
        loops.many(out, in, int(kRanks), count, scalars, {});
      };
    };
    const auto link = [&](Kernel kernel) {
      return [=](std::byte* out, const std::byte* const* in) { kernel(out, in[0], in[1], count, scalar); };
    };
    const auto& portable = *instruction_sets().back().find(dtype, op);
    const std::size_t bytes = count * size_of(dtype), partial = count * portable.partial_size;
    const std::vector<Bytes> elements = {numbers(bytes), numbers(bytes), numbers(bytes)};
    const std::vector<Bytes> two = {elements[0], elements[1]}, onto = {numbers(partial), elements[1]};
    for (const auto& set : instruction_sets()) {
      const auto& loops = *set.find(dtype, op);
      const auto same = [&](const char* which, auto run, auto reference, const std::vector<Bytes>& values,
                            std::size_t size) {
        const Bytes wanted = plain(reference, values, size);
        for (const bool last : {false, true})
          if (!std::equal(wanted.begin(), wanted.end(), guarded(run, values, size, last))) {
            std::ostringstream text;
            text << set.name << ": " << which << ", " << to_string(op) << " of " << count << " "
                 << to_string(dtype);
            throw check::Failure(text.str());
          }
      };
      same("many", many(loops), many(portable), elements, bytes);
      const Kernel begin = loops.first ? loops.first : loops.start;
      same("first", link(begin), link(portable.first ? portable.first : portable.start), two, partial);
      same("middle", link(loops.middle), link(portable.middle), onto, partial);
      same("last", link(loops.last), link(portable.last), onto, bytes);
    }
  }
};

}  // namespace

TEST(short_reductions_stay_between_their_edges) {
  Edges check;
  for (const auto dtype : reference::kDtypes)
    for (const auto op : reference::kOps)
      for (std::size_t bytes = 0; bytes <= 200; bytes += size_of(dtype))
        if (reference::has_meaning(dtype, op)) check(dtype, op, bytes / size_of(dtype));
}

TEST_MAIN
