#pragma once

#include "vccl_cuda/qualifiers.h"
#include "vccl_cuda/runtime_api.h"
#include "vccl_cuda/vector_types.h"
