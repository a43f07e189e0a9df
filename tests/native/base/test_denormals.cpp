// The thread's mode for denormal floats.
#include "base/denormals.hpp"

#include <thread>

#include "tests/native/check.hpp"

namespace {

/// Returns the smallest normal float divided by two, as the processor computes it.
float half_of_smallest() {
  volatile float smallest = 0x1p-126f;
  return smallest / 2;
}

/// Returns a denormal float times a large number, as the processor computes it.
float denormal_times_large() {
  volatile float denormal = 0x1p-130f;
  return denormal * 0x1p100f;
}

}  // namespace

TEST(flushing_takes_results_and_operands_for_zero) {
  CHECK_EQ(base::denormal_mode(), 0u);
  CHECK_EQ(half_of_smallest(), 0x1p-127f);
  CHECK_EQ(denormal_times_large(), 0x1p-30f);
  if (base::kFlushDenormals == 0) return;
  base::set_denormal_mode(base::kFlushDenormals);
  const auto mode = base::denormal_mode();
  const float result = half_of_smallest(), product = denormal_times_large();
  base::set_denormal_mode(0);
  CHECK_EQ(mode, base::kFlushDenormals);
  CHECK_EQ(result, 0.0f);
  CHECK_EQ(product, 0.0f);
  CHECK_EQ(half_of_smallest(), 0x1p-127f);
}

TEST(the_mode_belongs_to_the_thread) {
  base::set_denormal_mode(base::kFlushDenormals);
  base::set_denormal_mode(0);
  std::thread([] { base::set_denormal_mode(base::kFlushDenormals); }).join();
  CHECK_EQ(base::denormal_mode(), 0u);
}

TEST_MAIN
