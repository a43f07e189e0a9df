// What a diagnosis of jobs needs to know of torch.
#pragma once

#include "diagnosis/job.hpp"

namespace vccl {

/// Returns options with torch's names of dtypes.
DiagnosisOptions diagnosis_options();

}  // namespace vccl
