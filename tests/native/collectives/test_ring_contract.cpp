// The algorithms on a ring that checks every block: what they compute, and how they use a transport.
#include <string>
#include <vector>

#include "csrc_pg/collectives/types.hpp"
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
  for (int size = 1; size <= 5; ++size) {
    std::vector<Case> cases;
    for (const auto dtype : reference::kDtypes)
      for (const auto op : reference::kOps)
        if (dtype != Dtype::boolean || op != ReduceOp::avg)
          cases.push_back(
              {Collective::all_reduce, dtype, op, -1, 1501, 1, bool(cases.size() % 2), cases.size()});
    play_all(size, 1, cases);
  }
}

TEST(random_cases) {
  for (int size = 1; size <= 5; ++size)
    play_all(size, 1, reference::random_cases(100 + std::uint64_t(size), size, 40, 1 << 20));
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
                {Collective::broadcast, dtype, ReduceOp::sum, 1, 1'000'003, 0, false, 3}});
}

TEST(refusals_name_what_is_wrong_and_harm_nothing) {
  strict::Ring ring(2, 1);
  std::vector<float> memory(64);
  const Deadline deadline = Deadline::in(Milliseconds(1000));
  const auto refused = [&](Call call, ErrorCode code, const std::string& part) {
    try {
      run(ring[1], call, deadline);
    } catch (const Error& error) {
      const std::string what = error.what();
      if (error.code() != code || what.find(part) == std::string::npos)
        throw check::Failure("wrong error: " + what);
      CHECK(what.find("rank 1 of strict") != std::string::npos);
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
    const Deadline deadline = Deadline::in(Milliseconds(10'000));
    run(ring[rank], {Collective::all_reduce, Dtype::float32, ReduceOp::sum}, deadline);
    run(ring[rank], {Collective::all_gather, Dtype::float32}, deadline);
    run(ring[rank], {Collective::broadcast, Dtype::float32, ReduceOp::sum, 1}, deadline);
    CHECK_EQ(ring[rank].sequence(), 3u);
  });
}

TEST_MAIN
