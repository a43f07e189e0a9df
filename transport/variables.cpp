#include "transport/variables.hpp"

#include <strings.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include "base/text.hpp"
#include "transport/error.hpp"

namespace vccl {
namespace {

constexpr unsigned kMostLinkTimeout = 86'400;
constexpr unsigned kMostWarnAfter = 86'400;
constexpr unsigned kMostRecorderEntries = 1'000'000;
constexpr std::size_t kEntriesOfRecord = 16'384;  // of the ring, while a record is made of it

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Relaxed: it is set before the threads that read it are started.
std::atomic<bool> reads_nccl{false};

// Returns the name and the value of the first variable that is set. Torch's NCCL names count in pose.
std::pair<const char*, std::string> first_set(std::initializer_list<const char*> names, const char* nccls) {
  for (const char* name : names) {
    if (auto value = variable(name); !value.empty()) return {name, std::move(value)};
  }
  return {nccls, reads_nccl.load(std::memory_order_relaxed) ? variable(nccls) : ""};
}

// Reads a level of NCCL. NCCL also takes VERSION and ABORT, which concern itself, and passes over other
// texts.
LogLevel nccl_level(const std::string& value) {
  if (strcasecmp(value.c_str(), "WARN") == 0) return LogLevel::warn;
  if (strcasecmp(value.c_str(), "INFO") == 0 || strcasecmp(value.c_str(), "TRACE") == 0)
    return LogLevel::info;
  return LogLevel::none;
}

LogLevel level(const std::string& value) {
  if (value.empty())
    return reads_nccl.load(std::memory_order_relaxed) ? nccl_level(variable("NCCL_DEBUG")) : LogLevel::none;
  if (strcasecmp(value.c_str(), "WARN") == 0) return LogLevel::warn;
  if (strcasecmp(value.c_str(), "INFO") == 0) return LogLevel::info;
  throw Error(ErrorCode::invalid, base::text("VCCL_DEBUG is \"", value, "\"; allowed are WARN and INFO"));
}

LinkSecurity security_from(const std::string& value) {
  if (value.empty()) return LinkSecurity::encrypt;
  for (const LinkSecurity security :
       {LinkSecurity::encrypt, LinkSecurity::authenticate, LinkSecurity::none}) {
    if (value == name_of(security)) return security;
  }
  throw Error(ErrorCode::invalid, base::text("VCCL_LINK_SECURITY is \"", value,
                                             "\"; allowed are encrypt, authenticate and none"));
}

/// Returns the number that makes up all of `text`, or nothing.
std::optional<unsigned> number(std::string_view text) {
  unsigned value = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || wrong != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

PortRange ports_from(const std::string& value) {
  if (value.empty()) return {};
  const std::size_t dash = value.find('-');
  const auto first = number(value.substr(0, dash));
  const auto last = dash == std::string::npos ? first : number(value.substr(dash + 1));
  if (first && last && *first >= 1 && *first <= *last && *last <= UINT16_MAX)
    return {static_cast<std::uint16_t>(*first), static_cast<std::uint16_t>(*last)};
  throw Error(ErrorCode::invalid,
              base::text("VCCL_PORT_RANGE is \"", value,
                         "\"; allowed are two ports from 1 to 65535, as in 40000-40999, or one port"));
}

Milliseconds link_timeout_from(const std::string& value) {
  if (value.empty()) return Variables().link_timeout;
  const auto seconds = number(value);
  if (seconds && *seconds >= 1 && *seconds <= kMostLinkTimeout) return std::chrono::seconds(*seconds);
  throw Error(ErrorCode::invalid, base::text("VCCL_LINK_TIMEOUT is \"", value, "\"; allowed are 1 to ",
                                             kMostLinkTimeout, " seconds"));
}

Milliseconds warn_after_from(const std::string& value) {
  if (value.empty()) return Variables().warn_after;
  const auto seconds = number(value);
  if (seconds && *seconds <= kMostWarnAfter) return std::chrono::seconds(*seconds);
  throw Error(ErrorCode::invalid, base::text("VCCL_WARN_AFTER is \"", value, "\"; allowed are 0 to ",
                                             kMostWarnAfter, " seconds, where 0 warns never"));
}

}  // namespace

const char* name_of(LinkSecurity security) {
  switch (security) {
    case LinkSecurity::authenticate:
      return "authenticate";
    case LinkSecurity::none:
      return "none";
    default:
      return "encrypt";
  }
}

void also_read_nccl_variables() {
  reads_nccl.store(true, std::memory_order_relaxed);
}

Variables read_variables() {
  Variables variables;
  variables.host_id = first_set({"VCCL_HOSTID"}, "NCCL_HOSTID").second;
  variables.socket_interface = first_set({"VCCL_SOCKET_IFNAME"}, "NCCL_SOCKET_IFNAME").second;
  variables.zmq_library = variable("VCCL_ZMQ_LIBRARY");
  variables.crypto_library = variable("VCCL_CRYPTO_LIBRARY");
  variables.link_security = security_from(variable("VCCL_LINK_SECURITY"));
  variables.ports = ports_from(variable("VCCL_PORT_RANGE"));
  variables.link_timeout = link_timeout_from(variable("VCCL_LINK_TIMEOUT"));
  variables.warn_after = warn_after_from(variable("VCCL_WARN_AFTER"));
  variables.algorithms = variable("VCCL_ALGO");
  variables.debug = level(variable("VCCL_DEBUG"));
  read_ras_address();  // a group that is being made tells all ranks what is wrong
  return variables;
}

namespace {

bool read_switch(const char* name) {
  const std::string value = variable(name);
  if (value.empty() || value == "0") return false;
  if (value == "1") return true;
  throw Error(ErrorCode::invalid, base::text(name, " is \"", value, "\"; allowed are 0 and 1"));
}

}  // namespace

bool read_share_cpu() {
  return read_switch("VCCL_SHARE_CPU");
}

namespace {

bool is_one_of(const std::string& value, std::initializer_list<const char*> texts) {
  return std::ranges::any_of(texts, [&](const char* text) { return strcasecmp(value.c_str(), text) == 0; });
}

// Returns what a switch of torch says, and nothing if it is unset. The last name counts where NCCL's
// variables are read.
std::optional<bool> torch_switch(std::initializer_list<const char*> names, const char* nccls) {
  const auto [name, value] = first_set(names, nccls);
  if (value.empty()) return std::nullopt;
  if (is_one_of(value, {"y", "yes", "1", "t", "true"})) return true;
  if (is_one_of(value, {"n", "no", "0", "f", "false"})) return false;
  throw Error(ErrorCode::invalid,
              base::text(name, " is \"", value, "\"; allowed are y, yes, 1, t, true, n, no, 0, f and false"));
}

DumpsAfterFailure dumps_after_failure() {
  const auto wanted = torch_switch({}, "TORCH_NCCL_DUMP_ON_TIMEOUT");
  if (!wanted) return DumpsAfterFailure::where_named;
  return *wanted ? DumpsAfterFailure::always : DumpsAfterFailure::never;
}

}  // namespace

bool read_strict(bool by_default) {
  const std::string value = variable("VCCL_STRICT");
  if (value.empty()) return by_default;
  if (value == "nccl") return true;
  if (value == "0") return false;
  throw Error(ErrorCode::invalid, base::text("VCCL_STRICT is \"", value, "\"; allowed are nccl and 0"));
}

CheckVariables read_check_variables() {
  CheckVariables checks;
  const std::string value = variable("VCCL_CHECK");
  for (std::size_t at = 0; at < value.size();) {
    const std::size_t end = std::min(value.find(',', at), value.size());
    const std::string check = value.substr(at, end - at);
    const bool all = check == "all";
    constexpr std::string_view kAllowed[] = {"nan",   "nan:inputs", "nan:outputs", "content",
                                             "order", "leak",       "all"};
    if (std::ranges::find(kAllowed, check) == std::end(kAllowed)) {
      throw Error(
          ErrorCode::invalid,
          base::text("VCCL_CHECK is \"", value, "\"; allowed are nan, nan:inputs, nan:outputs, content, ",
                     "order, leak and all, or several of them with commas in ", "between"));
    }
    checks.nan_inputs |= all || check == "nan" || check == "nan:inputs";
    checks.nan_outputs |= all || check == "nan:outputs";
    checks.content |= all || check == "content";
    checks.order |= all || check == "order";
    checks.leaks |= all || check == "leak";
    at = end + 1;
  }
  checks.nan_inputs |= torch_switch({}, "TORCH_NCCL_NAN_CHECK").value_or(false);
  return checks;
}

std::string read_ras_address() {
  const auto [name, value] = first_set({"VCCL_RAS_ADDR"}, "NCCL_RAS_ADDR");
  if (value.empty()) return value;
  const auto colon = value.rfind(':');
  if (colon != std::string::npos && colon > 0) {
    const auto port = number(value.substr(colon + 1));
    if (port && *port >= 1 && *port <= 65535) return value;
  }
  throw Error(ErrorCode::invalid,
              base::text(name, " is \"", value, "\"; allowed are a host and a port from 1 to ",
                         "65535, as in localhost:28028"));
}

namespace {

/// Reads VCCL_RECORD, which is a directory, or a directory and ",hash".
void read_record(RecorderVariables& variables) {
  constexpr std::string_view kHash = ",hash";
  const std::string value = variable("VCCL_RECORD");
  const std::string_view text = value;
  variables.record_hashes = text.ends_with(kHash);
  variables.record_directory = text.substr(0, text.size() - (variables.record_hashes ? kHash.size() : 0));
  if (variables.record_hashes && variables.record_directory.empty())
    throw Error(ErrorCode::invalid, base::text("VCCL_RECORD is \"", value,
                                               "\"; allowed are a directory, and a "
                                               "directory followed by ,hash"));
}

}  // namespace

RecorderVariables read_recorder_variables() {
  RecorderVariables variables;
  const auto [name, size] =
      first_set({"VCCL_RECORDER_SIZE", "TORCH_FR_BUFFER_SIZE"}, "TORCH_NCCL_TRACE_BUFFER_SIZE");
  if (!size.empty()) {
    const auto entries = number(size);
    if (!entries || *entries > kMostRecorderEntries) {
      throw Error(ErrorCode::invalid, base::text(name, " is \"", size, "\"; allowed are 0 to ",
                                                 kMostRecorderEntries, " operations, where 0 records none"));
    }
    variables.entries = *entries;
  }
  if (torch_switch({"TORCH_FR_CPP_STACK"}, "TORCH_NCCL_TRACE_CPP_STACK").value_or(false))
    variables.stacks = StacksToRecord::with_cpp;
  else if (read_switch("VCCL_RECORD_STACKS"))
    variables.stacks = StacksToRecord::whole;
  else if (read_check_variables().order)
    variables.stacks = StacksToRecord::line;
  variables.file =
      first_set({"VCCL_RECORDER_FILE", "TORCH_FR_DUMP_TEMP_FILE"}, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE").second;
  const std::string home = variable("HOME");
  variables.default_file = base::text(home.empty() ? "/tmp" : home, "/.cache/torch/comm_lib_trace_rank_");
  variables.after_failure = dumps_after_failure();
  variables.trigger = variable("VCCL_RECORDER_TRIGGER");
  variables.pipe = first_set({}, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE").second;
  read_record(variables);
  if (!variables.record_directory.empty() && size.empty()) variables.entries = kEntriesOfRecord;
  return variables;
}

}  // namespace vccl
