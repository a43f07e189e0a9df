// Runs the ring algorithms on a ring that checks every block, and checks what they compute.
#include <string>
#include <vector>

#include "csrc_pg/collectives/run.hpp"
#include "tests/native/check.hpp"
#include "tests/native/collectives/play.hpp"
#include "tests/native/collectives/reference.hpp"
#include "tests/native/collectives/strict_ring.hpp"
#include "tests/native/transport/harness.hpp"

using namespace vccl;
using reference::Case;

namespace {

void play_all(int size, int stride, const std::vector<Case>& cases) {
  strict::Ring ring(size, stride);
  std::vector<std::vector<std::vector<std::byte>>> outputs(static_cast<std::size_t>(size));
  run_threads(size, [&](int rank) {
    try {
      for (const auto& c : cases) {
        std::vector<std::byte> memory(memory_for(c, size));
        outputs[std::size_t(rank)].push_back(play(ring[rank], c, memory.data()));
      }
    } catch (const std::exception& error) {
      ring[rank].abort(error.what());
      throw;
    }
  });
  check_outputs(cases, outputs);
}

}  // namespace

TEST(every_dtype_and_op) {
  using enum Collective;
  for (int size = 1; size <= 5; ++size) {
    std::vector<Case> cases;
    for (const auto dtype : reference::kDtypes)
      for (const auto op : reference::kOps) {
        if (!reference::has_meaning(dtype, op)) continue;
        for (const auto collective : {all_reduce, reduce_scatter, reduce}) {
          const auto seed = cases.size();
          const int root = collective == reduce ? int(seed) % size : -1;
          cases.push_back({collective, dtype, op, root, 701, 1, seed % 2 == 0, seed,
                           collective == reduce_scatter && seed % 3 == 0});
        }
      }
    play_all(size, 1, cases);
  }
}

TEST(every_dtype_moves) {
  using enum Collective;
  for (int size = 1; size <= 4; ++size) {
    std::vector<Case> cases;
    for (const auto dtype : reference::kDtypes)
      for (const auto collective : {broadcast, all_gather, gather, scatter, all_to_all})
        for (const bool in_place : {false, true}) {
          const auto seed = cases.size();
          const bool uneven = seed % 3 == 0 && (collective == all_gather || collective == all_to_all);
          cases.push_back({collective, dtype, ReduceOp::sum, has_root(collective) ? int(seed) % size : -1,
                           333, 1, in_place, seed, uneven});
        }
    play_all(size, 1, cases);
  }
}

TEST(random_cases) {
  for (int size = 1; size <= 5; ++size)
    play_all(size, 1, reference::random_cases(100 + std::uint64_t(size), size, 80, 1 << 20));
}

TEST(ring_order_other_than_rank_order) {
  play_all(5, 3, reference::random_cases(7, 5, 30, 1 << 18));
  play_all(3, 2, reference::random_cases(8, 3, 30, 1 << 18));
}

TEST(many_segments) {
  for (const int size : {2, 3})
    for (const auto dtype : {Dtype::float32, Dtype::bfloat16})
      play_all(size, 1,
               {{Collective::all_reduce, dtype, ReduceOp::avg, -1, 900'003, 3, false, 1},
                {Collective::all_gather, dtype, ReduceOp::sum, -1, 400'001, 0, true, 2},
                {Collective::broadcast, dtype, ReduceOp::sum, 1, 1'000'003, 0, false, 3},
                {Collective::reduce_scatter, dtype, ReduceOp::premul_sum, -1, 400'001, 1, true, 4},
                {Collective::reduce, dtype, ReduceOp::sum, 1, 900'003, 0, true, 5},
                {Collective::gather, dtype, ReduceOp::sum, 0, 300'001, 0, false, 6},
                {Collective::scatter, dtype, ReduceOp::sum, 1, 300'001, 0, false, 7},
                {Collective::all_to_all, dtype, ReduceOp::sum, -1, 300'001, 0, false, 8, true}});
}

TEST(refusals_name_what_is_wrong_and_harm_nothing) {
  strict::Ring ring(2, 1);
  std::vector<float> memory(64);
  const Deadline deadline = Deadline::in(Milliseconds(300'000));
  const auto refused = [&](Call call, ErrorCode code, const std::string& part) {
    try {
      run(ring[1], call, deadline);
    } catch (const Error& error) {
      const std::string what = error.what();
      if (error.code() != code || what.find(part) == std::string::npos)
        throw check::Failure("wrong error: " + what);
      CHECK(what.find("rank 1 of group strict") != std::string::npos);
      return;
    }
    throw check::Failure("no error for " + part);
  };
  float* data = memory.data();
  using enum Collective;
  refused({all_reduce, Dtype::boolean, ReduceOp::avg, -1, 8, data, data}, ErrorCode::unsupported,
          "all_reduce(bool, 8 elements, AVG): all_reduce has no AVG of bool elements");
  refused({broadcast, Dtype::float32, ReduceOp::sum, 2, 8, data, data}, ErrorCode::invalid,
          "root 2 is not a rank");
  refused({broadcast, Dtype::float32, ReduceOp::sum, -1, 8, data, data}, ErrorCode::invalid, "root -1");
  refused({all_reduce, Dtype::float32, ReduceOp::sum, -1, 8, nullptr, data}, ErrorCode::invalid,
          "input is a null");
  refused({all_gather, Dtype::float32, ReduceOp::sum, -1, 8, data, nullptr}, ErrorCode::invalid,
          "output is a null");
  refused({broadcast, Dtype::float32, ReduceOp::sum, 0, 8, nullptr, nullptr}, ErrorCode::invalid,
          "output is a null");
  refused({broadcast, Dtype::float32, ReduceOp::sum, 1, 8, nullptr, data}, ErrorCode::invalid,
          "input is a null");
  refused({all_reduce, Dtype::float32, ReduceOp::sum, -1, std::size_t(1) << 62, data, data},
          ErrorCode::invalid, "longer than the address space");
  refused({all_gather, Dtype::float32, ReduceOp::sum, -1, std::size_t(1) << 60, data, data},
          ErrorCode::invalid, "longer than the address space");
  refused({all_reduce, Dtype::float32, ReduceOp::sum, -1, 8, data + 1, data}, ErrorCode::invalid, "overlap");
  refused({all_gather, Dtype::float32, ReduceOp::sum, -1, 8, data, data}, ErrorCode::invalid, "overlaps");
  const std::size_t two[] = {3, 5}, three[] = {1, 2, 3}, more[] = {4, 4};
  constexpr std::size_t kHuge = std::size_t(1) << 61;
  const std::size_t huge[] = {kHuge, kHuge};
  refused({reduce_scatter, Dtype::float8_e4m3fnuz, ReduceOp::sum, -1, 8, data, data}, ErrorCode::unsupported,
          "reduce_scatter has no SUM of float8_e4m3fnuz elements; they can be moved");
  refused({reduce, Dtype::complex64, ReduceOp::max, 0, 8, data, data}, ErrorCode::unsupported,
          "reduce has no MAX of complex64 elements; complex numbers have no order");
  refused({all_reduce, Dtype::float32, ReduceOp::bxor, -1, 8, data, data}, ErrorCode::unsupported,
          "all_reduce has no BXOR of float32 elements; bitwise");
  refused({all_reduce, Dtype::complex128, ReduceOp::band, -1, 2, data, data}, ErrorCode::unsupported,
          "all_reduce has no BAND of complex128 elements; bitwise");
  refused({all_reduce, Dtype::int32, ReduceOp::premul_sum, -1, 8, data, data}, ErrorCode::unsupported,
          "all_reduce has no PREMUL_SUM of int32 elements; the factor");
  for (const auto collective : {reduce, gather, scatter})
    refused({collective, Dtype::float32, ReduceOp::sum, 7, 8, data, data}, ErrorCode::invalid,
            "root 7 is not a rank");
  refused({reduce_scatter, Dtype::float32, ReduceOp::sum, -1, 8, data, data}, ErrorCode::invalid,
          "output overlaps the input elsewhere");
  refused({gather, Dtype::float32, ReduceOp::sum, 1, 8, data, data}, ErrorCode::invalid,
          "input overlaps the output elsewhere");
  refused({scatter, Dtype::float32, ReduceOp::sum, 1, 8, data, data}, ErrorCode::invalid,
          "output overlaps the input elsewhere");
  refused({all_to_all, Dtype::float32, ReduceOp::sum, -1, 8, data, data + 8}, ErrorCode::invalid, "overlap");
  refused({gather, Dtype::float32, ReduceOp::sum, 1, 8, data, nullptr}, ErrorCode::invalid,
          "output is a null");
  refused({scatter, Dtype::float32, ReduceOp::sum, 1, 8, nullptr, data}, ErrorCode::invalid,
          "input is a null");
  refused({.collective = all_gather, .input = data, .output = data, .output_counts = three},
          ErrorCode::invalid, "3 output counts were given for 2 ranks");
  refused({.collective = all_gather, .input = data, .output = data, .input_counts = two}, ErrorCode::invalid,
          "all_gather takes no input counts");
  refused({.collective = gather, .root = 1, .input = data, .output = data, .output_counts = two},
          ErrorCode::invalid, "gather takes no output counts");
  refused({.collective = all_to_all, .input = data, .output = data, .input_counts = two}, ErrorCode::invalid,
          "have to be given together");
  refused(
      {.collective = all_to_all, .input = data, .output = data, .input_counts = two, .output_counts = more},
      ErrorCode::invalid, "sends itself 5 elements and expects 4");
  refused({.collective = reduce_scatter,
           .dtype = Dtype::float32,
           .input = data,
           .output = data,
           .input_counts = huge},
          ErrorCode::invalid, "longer than the address space");
  refused({all_reduce, Dtype(99), ReduceOp::sum, -1, 8, data, data}, ErrorCode::unsupported, "number 99");
  refused({all_reduce, Dtype::float32, ReduceOp(77), -1, 8, data, data}, ErrorCode::unsupported, "number 77");
  refused({Collective(55)}, ErrorCode::unsupported, "number 55");
  CHECK(!ring[1].failed());
  CHECK_EQ(ring[1].sequence(), 0u);

  run_threads(2, [&](int rank) {
    std::vector<float> ones(9, 1.0f);
    run(ring[rank], {all_reduce, Dtype::float32, ReduceOp::sum, -1, 9, ones.data(), ones.data()}, deadline);
    CHECK(ones == std::vector<float>(9, 2.0f));
  });
}

TEST(nothing_at_all_is_a_call_too) {
  strict::Ring ring(2, 1);
  run_threads(2, [&](int rank) {
    const Deadline deadline = Deadline::in(Milliseconds(300'000));
    run(ring[rank], {Collective::all_reduce, Dtype::float32, ReduceOp::sum}, deadline);
    run(ring[rank], {Collective::all_gather, Dtype::float32}, deadline);
    run(ring[rank], {Collective::broadcast, Dtype::float32, ReduceOp::sum, 1}, deadline);
    for (const auto collective : {Collective::reduce_scatter, Collective::reduce, Collective::gather,
                                  Collective::scatter, Collective::all_to_all})
      run(ring[rank], {collective, Dtype::float16, ReduceOp::premul_sum, 1}, deadline);
    const std::size_t none[] = {0, 0};
    run(ring[rank], {.collective = Collective::all_to_all, .input_counts = none, .output_counts = none},
        deadline);
    CHECK_EQ(ring[rank].sequence(), 9u);
  });
}

TEST(splits_that_disagree_are_the_same_error_on_every_rank) {
  for (const int size : {2, 3, 5}) {
    strict::Ring ring(size, 1);
    run_threads(size, [&](int rank) {
      std::vector<std::size_t> sent(std::size_t(size), 2), expected(std::size_t(size), 2);
      if (rank == 0) sent[1] = 3;
      const std::vector<char> input(11);
      std::vector<char> output(11);
      const Call call{.collective = Collective::all_to_all,
                      .input = input.data(),
                      .output = output.data(),
                      .input_counts = sent,
                      .output_counts = expected};
      const Error error = error_of([&] { run(ring[rank], call, Deadline::in(Milliseconds(300'000))); });
      CHECK_EQ(to_string(error.code()), std::string("mismatch"));
      check_contains(error.what(), "rank 0 sends 3 elements to rank 1, which expects 2");
    });
  }
}

TEST_MAIN
