#include "csrc_pg/dumps/own_spool.hpp"

#include <cstdio>
#include <memory>
#include <mutex>

#include "base/fork.hpp"
#include "base/text.hpp"
#include "csrc_pg/dumps/dumps.hpp"
#include "csrc_pg/dumps/own_flight_recorder.hpp"
#include "recorder/spool.hpp"

namespace vccl {
namespace {

struct OwnSpool {
  std::mutex mutex;
  bool asked = false;
  std::string directory;
  std::unique_ptr<Spool> spool;
};

OwnSpool& own_spool() {
  static base::OnePerProcess<OwnSpool> one;
  return one.get();
}

SpoolSettings settings_of(const std::string& directory, bool hashes) {
  const auto options = dump_options(get_text(own_flight_recorder().process().backend));
  SpoolSettings settings;
  settings.directory = directory;
  settings.hashes = hashes;
  settings.dtype_name = options.dtype_name;
  settings.library = options.library;
  return settings;
}

}  // namespace

void begin_record_if_asked() {
  const auto& variables = own_recorder_variables();
  if (variables.record_directory.empty()) return;
  auto& record = own_spool();
  {
    const std::lock_guard lock(record.mutex);
    if (record.asked) return;
    record.asked = true;
  }
  try {
    begin_record(variables.record_directory, variables.record_hashes);
  } catch (const SpoolRefused& refused) {
    std::fprintf(stderr, "[vccl] Communication is not recorded (VCCL_RECORD): %s.\n", refused.what());
  }
}

void begin_record(const std::string& directory, bool hashes) {
  auto& record = own_spool();
  const std::lock_guard lock(record.mutex);
  if (record.spool)
    throw SpoolRefused(base::text("this process records its communication already, in ", record.directory));
  record.spool = std::make_unique<Spool>(own_flight_recorder(), settings_of(directory, hashes));
  record.directory = directory;
}

void end_record(std::chrono::milliseconds patience) noexcept {
  std::unique_ptr<Spool> spool;
  {
    auto& record = own_spool();
    const std::lock_guard lock(record.mutex);
    spool = std::move(record.spool);
  }
  if (spool) spool->end(patience);
}

}  // namespace vccl
