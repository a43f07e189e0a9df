// What processes that share memory tell each other, and the races between them.
#pragma once

#include "sanitizer/processes/bytes.hpp"
#include "sanitizer/processes/journal.hpp"
#include "sanitizer/processes/records.hpp"
#include "sanitizer/processes/shared_past.hpp"
