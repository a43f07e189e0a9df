#pragma once

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAEvent.h>
