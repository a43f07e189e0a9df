// Every VCCL_* variable that the transport knows. variables.cpp reads them. The cards read VCCL_HOSTID,
// too.
//
// A new variable gets a member of Variables with a comment, its reading and its check in
// read_variables(), a row in docs/environment.md (a test compares the page with this code), and tests of
// good and bad values in tests/native/transport/meeting/test_handover.cpp and
// tests/distributed/failures/test_deaths.py. A variable that is needed before a group exists gets a
// function of its own, as VCCL_SHARE_CPU has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "transport/deadline.hpp"

namespace vccl {

/// How much the transport logs to stderr.
enum class LogLevel { none, warn, info };

/// How payload between hosts is protected.
enum class LinkSecurity { encrypt, authenticate, none };
/// Returns the value of VCCL_LINK_SECURITY that stands for it.
const char* name_of(LinkSecurity security);

/// The TCP ports at which links between hosts listen.
struct PortRange {
  std::uint16_t first = 0, last = 0;  // any free port if both are 0

  bool any() const { return first == 0; }
  bool operator==(const PortRange&) const = default;
};

struct Variables {
  std::string host_id;              // VCCL_HOSTID: ranks with different ids count as ranks on different hosts
  std::string socket_interface;     // VCCL_SOCKET_IFNAME: the network interface that links between hosts use
  std::string zmq_library;          // VCCL_ZMQ_LIBRARY: path of the libzmq to load
  std::string crypto_library;       // VCCL_CRYPTO_LIBRARY: path of the libcrypto to load, or "none"
  std::string algorithms;           // VCCL_ALGO: which algorithm to take, by collective and size
  LogLevel debug = LogLevel::none;  // VCCL_DEBUG: WARN or INFO
  // VCCL_LINK_SECURITY: encrypt, authenticate or none
  LinkSecurity link_security = LinkSecurity::encrypt;
  PortRange ports;                   // VCCL_PORT_RANGE: "first-last"
  Milliseconds link_timeout{5'000};  // VCCL_LINK_TIMEOUT: how long a rank on another host may be silent
  Milliseconds warn_after{60'000};   // VCCL_WARN_AFTER: when a wait is worth a warning; 0: never
};

/// Makes read_variables() read NCCL_HOSTID, NCCL_SOCKET_IFNAME and NCCL_DEBUG where the variable of the
/// same name with VCCL_ is unset. Call this once, before the first group, in a process whose cards stand for
/// CUDA.
void also_read_nccl_variables();

/// Reads the variables anew. Throws Error(invalid), which names the variable, its value and what is allowed.
Variables read_variables();

/// Returns VCCL_SHARE_CPU: whether large CPU tensors are allocated in shared memory. This is a function of
/// its own because it is needed before a group exists. Throws what read_variables() throws.
bool read_share_cpu();

/// What VCCL_CHECK asks to check of a program: a list of nan, nan:inputs, nan:outputs, content, order, leak
/// and all.
struct CheckVariables {
  bool nan_inputs = false;   // nan, nan:inputs: NaN and infinity in what collectives read
  bool nan_outputs = false;  // nan:outputs: the same in what they have written
  bool content = false;      // content: results that must be the same on all ranks
  bool order = false;        // order: in which order ranks use their groups
  bool leaks = false;        // leak: operations that nobody has waited for
};

/// Returns whether a group refuses what NCCL refuses (VCCL_STRICT): "nccl" says yes, "0" says no, and
/// `by_default` applies where the variable is unset. Throws what read_variables() throws.
bool read_strict(bool by_default);

/// Reads VCCL_CHECK. TORCH_NCCL_NAN_CHECK=1 switches nan_inputs on where NCCL's variables are read. Throws
/// what read_variables() throws.
CheckVariables read_check_variables();

/// Whether a rank writes dumps of the flight recorder after a failure.
enum class DumpsAfterFailure {
  where_named,  // if somebody has named a place for them
  always,       // if nobody has, to the default place
  never,
};

/// What the flight recorder notes of the stack of each call.
enum class StacksToRecord {
  none,
  line,      // the program's line, with VCCL_CHECK=order
  whole,     // all frames of Python, with VCCL_RECORD_STACKS
  with_cpp,  // those of C++, too, with TORCH_FR_CPP_STACK, or TORCH_NCCL_TRACE_CPP_STACK in pose
};

/// What the flight recorder is to do. Torch's variables count where the one with VCCL_ is unset.
struct RecorderVariables {
  std::size_t entries = 2000;  // VCCL_RECORDER_SIZE, TORCH_FR_BUFFER_SIZE: how many operations it keeps
  StacksToRecord stacks = StacksToRecord::none;
  // VCCL_RECORDER_FILE, TORCH_FR_DUMP_TEMP_FILE: where dumps go, without the rank's number at the end. Empty
  // if nobody has named a place.
  std::string file;
  std::string
      default_file;  // where dumps go that somebody asks for where nobody has named a place: below HOME
  // TORCH_NCCL_DUMP_ON_TIMEOUT, where NCCL's variables are read
  DumpsAfterFailure after_failure = DumpsAfterFailure::where_named;
  // VCCL_RECORD: where a record of all operations goes. Empty if nobody has asked for one.
  std::string record_directory;
  bool record_hashes = false;  // whether VCCL_RECORD asks for hashes of the elements, too
  std::string trigger;  // VCCL_RECORDER_TRIGGER: the path of a file that asks for a dump when it appears
  // TORCH_NCCL_DEBUG_INFO_PIPE_FILE, where NCCL's variables are read: the path of a pipe into which somebody
  // writes to ask for a dump, without the rank's number and ".pipe" at the end
  std::string pipe;
};

/// Returns VCCL_RAS_ADDR, or NCCL_RAS_ADDR where NCCL's variables are read: "host:port" at which this process
/// is to answer clients of NCCL's RAS. Returns an empty text if neither is set. Throws what read_variables()
/// throws.
std::string read_ras_address();

/// Reads the variables of the flight recorder, which a process needs when it makes its first group. Throws
/// what read_variables() throws.
RecorderVariables read_recorder_variables();

}  // namespace vccl
