// What a diagnosis of jobs needs to know of torch, and who asks for one.
#pragma once

#include "diagnosis/job.hpp"

namespace vccl {

/// Returns options with torch's names of dtypes.
DiagnosisOptions diagnosis_options();
/// Returns the same for the job of this process alone.
DiagnosisOptions own_job_options();

/// Makes the texts of timeouts, and of warnings of long waits, say what keeps the ranks that are waited for.
void explain_waits_by_diagnosis();

}  // namespace vccl
