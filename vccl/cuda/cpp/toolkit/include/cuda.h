// The driver's interface is not there, but for the version and the names of streams.
#pragma once

#include "cuda_runtime_api.h"

#define CUDA_VERSION 12080

typedef cudaStream_t CUstream;
