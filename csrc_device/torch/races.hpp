// What the process group tells the race detector.
#pragma once

#include "csrc_device/torch/kernels/host_memory.hpp"
#include "csrc_device/torch/kernels/touched.hpp"
#include "csrc_device/torch/races/processes.hpp"
#include "csrc_device/torch/races/watch.hpp"
