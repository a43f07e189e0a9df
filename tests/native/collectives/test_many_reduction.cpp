// Compares reductions of many inputs at once with the same chain over whole buffers, bit by bit.
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "base/past_caches.hpp"
#include "csrc_pg/collectives/kernels/many_reduction.hpp"
#include "tests/native/check.hpp"
#include "tests/native/collectives/reference.hpp"

using namespace vccl;

namespace {

double factor_of_rank(int rank) {
  return 0.37 * rank - 1.1;
}

// Reduces by the definition: ((0 + 1) + 2) + ..., with partial results of the whole buffer.
std::vector<std::byte> chain(const Reduction& reduction, const reference::Inputs& inputs, ReduceOp op,
                             std::size_t element, std::size_t count) {
  const int size = int(inputs.size());
  const auto scalar = [&](int rank) {
    return op == ReduceOp::premul_sum ? factor_of_rank(rank) : double(size);
  };
  std::vector<std::byte> result(count * element), partial(count * reduction.partial_size);
  if (size == 1 && op != ReduceOp::premul_sum) return inputs[0];
  if (size <= 2 && (size == 1 || op != ReduceOp::premul_sum)) {
    const std::byte* const pointers[] = {inputs[0].data(), inputs.back().data()};
    const double scalars[] = {scalar(0), scalar(1)};
    reduction.many(result.data(), pointers, size, count, scalars, {});
    return result;
  }
  int rank = 1;
  if (reduction.start)
    reduction.start(partial.data(), nullptr, inputs[0].data(), count, scalar(0));
  else
    reduction.first(partial.data(), inputs[0].data(), inputs[rank++].data(), count, scalar(1));
  for (; rank < size - 1; ++rank)
    reduction.middle(partial.data(), partial.data(), inputs[std::size_t(rank)].data(), count, scalar(rank));
  reduction.last(result.data(), partial.data(), inputs.back().data(), count, scalar(size - 1));
  return result;
}

void check_chain(Dtype dtype, ReduceOp op, int size, std::size_t count) {
  const reference::Case c{.dtype = dtype, .op = op, .count = count, .seed = count};
  const auto inputs = reference::inputs_of(c, size);
  const auto wanted = chain(*find_reduction(dtype, op), inputs, op, size_of(dtype), count);
  const Call call{.collective = Collective::all_reduce, .dtype = dtype, .op = op, .count = count};
  // The result goes to a buffer of its own (-1), and to the place of each input.
  for (int place = -1; place < size; ++place) {
    auto copies = inputs;
    std::vector<std::byte> beside(wanted.size());
    std::vector<const std::byte*> pointers;
    for (const auto& copy : copies) pointers.push_back(copy.data());
    auto& result = place < 0 ? beside : copies[std::size_t(place)];
    ManyReduction reduce(call, size);
    if (op == ReduceOp::premul_sum)
      for (int rank = 0; rank < size; ++rank) reduce.set_factor(rank, factor_of_rank(rank));
    reduce(result.data(), pointers.data(), count);
    if (result != wanted) throw check::Failure("in place " + std::to_string(place) + ": " + c.text(size));
    for (int rank = 0; rank < size; ++rank)
      if (rank != place) CHECK(copies[std::size_t(rank)] == inputs[std::size_t(rank)]);
  }
}

// Makes NaN one bit pattern: which of two NaNs an addition passes on is the compiler's choice.
void unify_nan(Dtype dtype, std::vector<std::byte>& bytes) {
  reference::with_type(dtype, [&](auto type) {
    const auto unify = [&](auto element, auto is_nan) {
      for (std::size_t at = 0; at < bytes.size(); at += sizeof element) {
        std::memcpy(&element, bytes.data() + at, sizeof element);
        if (is_nan(element)) std::memset(bytes.data() + at, 0xff, sizeof element);
      }
    };
    using T = decltype(type);
    if constexpr (reference::kNarrow<T>)
      unify(type, [](auto x) { return std::isnan(x.value()); });
    else if constexpr (reference::kComplex<T>)
      unify(type.real(), [](auto x) { return std::isnan(x); });
    else if constexpr (std::is_floating_point_v<T>)
      unify(type, [](auto x) { return std::isnan(x); });
  });
}

struct Check {
  std::mt19937_64 random{77};

  // Returns random patterns, with more infinities, zeros and ties than chance gives. NaN can be left out,
  // since in a long chain it would hide all else.
  std::vector<std::byte> input(Dtype dtype, std::size_t count, bool nan) {
    std::vector<std::byte> bytes(count * size_of(dtype));
    for (auto& byte : bytes) byte = std::byte(random());
    reference::with_type(dtype, [&](auto type) {
      using T = decltype(type);
      const auto each = [&](auto element, auto is_nan, auto from) {
        for (std::size_t at = 0; at < bytes.size(); at += sizeof element) {
          std::memcpy(&element, bytes.data() + at, sizeof element);
          const auto kind = random() % 16;
          if (kind == 0 && nan) element = from(NAN);
          if (kind == 1) element = from(random() % 2 ? INFINITY : -INFINITY);
          if (kind == 2) element = from(random() % 2 ? 0.0f : -0.0f);
          if (kind > 4 || (!nan && is_nan(element)))
            element = from(std::ldexp(float(random() % 64) - 32, int(random() % 8) - 4));
          std::memcpy(bytes.data() + at, &element, sizeof element);
        }
      };
      const auto is_nan = [](auto x) { return std::isnan(x); };
      if constexpr (reference::kNarrow<T>)
        each(type, [](auto x) { return std::isnan(x.value()); }, [](float x) { return T{T::from(x)}; });
      else if constexpr (reference::kComplex<T>)
        each(type.real(), is_nan, [](float x) { return typename T::value_type(x); });
      else if constexpr (std::is_floating_point_v<T>)
        each(type, is_nan, [](float x) { return T(x); });
    });
    return bytes;
  }

  // Returns other options than the default ones half of the time. They have an effect only where the result
  // begins at a line.
  LoopOptions options(int place) {
    if (random() % 2) return {};
    const bool past_caches = place < 0 && random() % 4;
    return {past_caches ? Stores::past_caches : Stores::plain, int(1 + random() % 5)};
  }

  void operator()(Dtype dtype, ReduceOp op, int size, std::size_t count) {
    const std::size_t element = size_of(dtype);
    reference::Inputs inputs;
    const bool nan = random() % 2;
    for (int rank = 0; rank < size; ++rank) inputs.push_back(input(dtype, count, nan));
    auto wanted = chain(*instruction_sets().back().find(dtype, op), inputs, op, element, count);
    if (size == 1 && dtype == Dtype::boolean)
      for (auto& byte : wanted) byte = std::byte(byte != std::byte(0));
    unify_nan(dtype, wanted);
    std::vector<double> scalars(std::size_t(size), size);
    for (int rank = 0; op == ReduceOp::premul_sum && rank < size; ++rank)
      scalars[std::size_t(rank)] = factor_of_rank(rank);
    const int place = int(random() % std::uint64_t(size + 1)) - 1;  // -1: in a buffer of its own
    for (const auto& set : instruction_sets()) {
      // Each buffer has an address of its own and exactly its length, so that a sanitizer sees what is
      // beyond.
      std::vector<std::vector<std::byte>> memory;
      std::vector<const std::byte*> pointers;
      for (const auto& values : inputs) {
        const std::size_t shift = random() % 67;
        auto& buffer = memory.emplace_back(shift + values.size());
        std::memcpy(buffer.data() + shift, values.data(), values.size());
        pointers.push_back(buffer.data() + shift);
      }
      // What lies before the result and behind it must not change.
      const std::size_t before = 128;
      std::vector<std::byte> beside(before + count * element + 64, std::byte{0x5a});
      std::byte* to =
          place < 0 ? beside.data() + before : const_cast<std::byte*>(pointers[std::size_t(place)]);
      if (place < 0 && random() % 4) to -= reinterpret_cast<std::uintptr_t>(to) % 64;
      const LoopOptions how = options(place);
      set.find(dtype, op)->many(to, pointers.data(), size, count, scalars.data(), how);
      base::finish_stores();
      for (std::size_t i = 0; place < 0 && i < beside.size(); ++i)
        if (beside.data() + i < to || beside.data() + i >= to + count * element)
          CHECK(beside[i] == std::byte{0x5a});
      std::vector<std::byte> result(to, to + count * element);
      unify_nan(dtype, result);
      if (result != wanted)
        throw check::Failure(std::string(set.name) + ": " + to_string(op) + " of " + std::to_string(count) +
                             " " + to_string(dtype) + " of " + std::to_string(size) + " ranks, in place " +
                             std::to_string(place) + ", " + std::to_string(how.ways) + "-way" +
                             (how.stores == Stores::plain ? "" : " past the caches"));
      for (int rank = 0; rank < size; ++rank)
        if (rank != place)
          CHECK(std::memcmp(pointers[std::size_t(rank)], inputs[std::size_t(rank)].data(), count * element) ==
                0);
    }
  }
};

}  // namespace

TEST(every_instruction_set_is_one_chain) {
  Check check;
  for (const auto dtype : reference::kDtypes)
    for (const auto op : reference::kOps) {
      if (!reference::has_meaning(dtype, op)) continue;
      for (int size = 1; size <= 9; ++size)
        for (const std::size_t longest : {8, 70, 300, 3000, 9000})
          check(dtype, op, size, check.random() % longest);
      check(dtype, op, 40, check.random() % 300);
    }
}

TEST(many_inputs_are_one_chain) {
  for (const auto dtype : reference::kDtypes)
    for (const auto op : reference::kOps) {
      if (!reference::has_meaning(dtype, op)) continue;
      for (const int size : {1, 2, 3, 4, 7}) check_chain(dtype, op, size, 129);
    }
}

// The lengths end where vectors end, where blocks of them do, and where averages of integers do.
TEST(lengths_around_the_ends_of_blocks) {
  for (const auto dtype : {Dtype::int8, Dtype::bfloat16, Dtype::float32, Dtype::complex128})
    for (const auto op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::product})
      for (const std::size_t count : {0, 1, 511, 512, 513, 2047, 2048, 2049, 8191, 8192, 8193, 20'000})
        if (reference::has_meaning(dtype, op))
          for (const int size : {2, 3, 5}) check_chain(dtype, op, size, count);
}

// Every element is reduced once, whatever the order and the kind of store.
TEST(interleaving_and_stores_change_no_number) {
  for (const auto dtype : {Dtype::uint8, Dtype::int32, Dtype::bfloat16, Dtype::float32, Dtype::complex128})
    for (const auto op : {ReduceOp::sum, ReduceOp::avg}) {
      if (!reference::has_meaning(dtype, op)) continue;
      const std::size_t element = size_of(dtype);
      for (const int ways : {1, 2, 3, 4})
        for (const auto stores : {Stores::plain, Stores::past_caches})
          for (const std::size_t bytes : {256, 512, 1008, 1024, 1040, 4096, 16'384, 16'640, 40'016})
            for (const auto& set : instruction_sets()) {
              const std::size_t count = bytes / element;
              const reference::Case c{.dtype = dtype, .op = op, .count = count, .seed = bytes};
              const auto inputs = reference::inputs_of(c, 3);
              const std::byte* const pointers[] = {inputs[0].data(), inputs[1].data(), inputs[2].data()};
              const double scalars[] = {3, 3, 3};
              const auto* const reduction = set.find(dtype, op);
              std::vector<std::byte> wanted(bytes), memory(bytes + 64);
              reduction->many(wanted.data(), pointers, 3, count, scalars, {});
              std::byte* const result = memory.data() + base::bytes_to_line(memory.data());
              reduction->many(result, pointers, 3, count, scalars, {stores, ways});
              base::finish_stores();
              CHECK(std::memcmp(result, wanted.data(), count * element) == 0);
            }
    }
}

TEST(more_ranks_than_fit_without_an_allocation) {
  for (const int size : {16, 17, 40}) check_chain(Dtype::float32, ReduceOp::sum, size, 300);
}

TEST_MAIN
