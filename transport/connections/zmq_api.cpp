#include "transport/connections/zmq_api.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "base/text.hpp"
#include "transport/connections/connection_guard.hpp"
#include "transport/error.hpp"
#include "transport/libraries.hpp"
#include "transport/link_faults.hpp"
#include "transport/system/descriptor_limit.hpp"
#include "transport/variables.hpp"

namespace vccl {
namespace {

std::mutex context_mutex;
std::weak_ptr<ZmqContext>& current_context() {
  static auto* current = new std::weak_ptr<ZmqContext>;
  return *current;
}

std::mutex library_mutex;
std::atomic<const ZmqApi*> library{nullptr};  // set once, under the mutex; the library stays loaded
std::string& preferred_path() {
  static auto* path = new std::string;
  return *path;
}

template <class Function>
void find(void* handle, Function& function, const char* name, const std::string& path) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (!function)
    throw Error(ErrorCode::system, base::text(path, " has no ", name, ": libzmq 4.2 or later is needed"));
}

ZmqApi find_all(void* handle, const std::string& path) {
  ZmqApi api{};
  const auto get = [&](auto& function, const char* name) { find(handle, function, name, path); };
  get(api.ctx_new, "zmq_ctx_new");
  get(api.ctx_term, "zmq_ctx_term");
  get(api.ctx_set, "zmq_ctx_set");
  get(api.socket, "zmq_socket");
  get(api.close, "zmq_close");
  get(api.bind, "zmq_bind");
  get(api.connect, "zmq_connect");
  get(api.setsockopt, "zmq_setsockopt");
  get(api.getsockopt, "zmq_getsockopt");
  get(api.socket_monitor, "zmq_socket_monitor");
  get(api.poll, "zmq_poll");
  get(api.msg_init, "zmq_msg_init");
  get(api.msg_init_size, "zmq_msg_init_size");
  get(api.msg_init_data, "zmq_msg_init_data");
  get(api.msg_data, "zmq_msg_data");
  get(api.msg_size, "zmq_msg_size");
  get(api.msg_more, "zmq_msg_more");
  get(api.msg_gets, "zmq_msg_gets");
  get(api.msg_copy, "zmq_msg_copy");
  get(api.msg_close, "zmq_msg_close");
  get(api.msg_send, "zmq_msg_send");
  get(api.msg_recv, "zmq_msg_recv");
  get(api.error, "zmq_errno");
  get(api.error_text, "zmq_strerror");
  get(api.has, "zmq_has");
  get(api.curve_keypair, "zmq_curve_keypair");
  get(api.version, "zmq_version");
  api.path = path;
  return api;
}

ZmqApi load() {
  std::vector<std::string> paths;
  if (const std::string chosen = read_variables().zmq_library; !chosen.empty()) {
    paths = {chosen};
  } else {
    if (!preferred_path().empty()) paths.push_back(preferred_path());
    paths.push_back("libzmq.so.5");
  }
  std::string tried;
  for (const std::string& path : paths) {
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return find_all(handle, path);
    const char* why = dlerror();
    tried += base::text("\n  ", path, ": ", why ? why : "unknown error");
  }
  throw Error(ErrorCode::system, base::text("ranks on different hosts talk through libzmq, which could not "
                                            "be loaded. Install it with `pip install "
                                            "pyzmq`, or name a libzmq.so.5 in VCCL_ZMQ_LIBRARY. Tried:",
                                            tried));
}

}  // namespace

void set_zmq_library_path(const std::string& path) {
  std::lock_guard lock(library_mutex);
  preferred_path() = path;
}

const ZmqApi& zmq_api() {
  // This load pairs with the release store below: a thread that sees the pointer sees the functions.
  if (const ZmqApi* loaded = library.load(std::memory_order_acquire)) return *loaded;
  std::lock_guard lock(library_mutex);
  if (!library.load()) library.store(new ZmqApi(load()), std::memory_order_release);
  return *library.load();
}

void throw_zmq(const std::string& what) {
  const ZmqApi& api = zmq_api();
  throw Error(ErrorCode::system, base::text(what, " failed: ", api.error_text(api.error())));
}

std::shared_ptr<ZmqContext> ZmqContext::acquire() {
  std::lock_guard lock(context_mutex);
  auto context = current_context().lock();
  // A forked child has the object but none of its threads, so it makes a new one.
  if (!context || context->made_.inherited()) {
    require_descriptors(kDescriptors, "libzmq's threads");
    context.reset(new ZmqContext);
    current_context() = context;
  }
  return context;
}

bool ZmqContext::exists() {
  std::lock_guard lock(context_mutex);
  const auto context = current_context().lock();
  return context && !context->made_.inherited();
}

ZmqContext::ZmqContext() : context_(zmq_api().ctx_new()), guard_(std::make_unique<ConnectionGuard>()) {
  if (!context_) throw_zmq("zmq_ctx_new");
  // A blocky context would give sockets an endless linger, and an unreachable peer would hang the process's
  // exit.
  zmq_api().ctx_set(context_, zmq_constant::kContextBlocky, 0);
  zmq_api().ctx_set(context_, zmq_constant::kContextMaxSockets, 8192);
}

ZmqContext::~ZmqContext() {
  // In a forked child the context's threads do not exist, and ending the context would wait for them for
  // ever.
  if (made_.inherited()) {
    (void)guard_.release();
    return;
  }
  guard_.reset();
  // This waits for the sockets' lingers, which are short. A signal may interrupt it.
  while (zmq_api().ctx_term(context_) != 0 && zmq_api().error() == EINTR) {
  }
  link_faults::let_kept_leave();
}

ZmqMessage::ZmqMessage() {
  zmq_api().msg_init(&raw_);
}

ZmqMessage::ZmqMessage(const std::string& bytes) {
  if (zmq_api().msg_init_size(&raw_, bytes.size()) != 0) throw_zmq("zmq_msg_init_size");
  if (!bytes.empty()) std::memcpy(zmq_api().msg_data(&raw_), bytes.data(), bytes.size());
}

ZmqMessage::ZmqMessage(void* data, std::size_t size, void (*free)(void*, void*), void* hint) {
  if (zmq_api().msg_init_data(&raw_, data, size, free, hint) != 0) throw_zmq("zmq_msg_init_data");
}

// A zmq_msg_t may be moved in memory between calls: libzmq's own C++ binding does so too.
ZmqMessage::ZmqMessage(ZmqMessage&& other) noexcept : raw_(other.raw_) {
  zmq_api().msg_init(&other.raw_);
}

ZmqMessage& ZmqMessage::operator=(ZmqMessage&& other) noexcept {
  std::swap(raw_, other.raw_);
  return *this;
}

ZmqMessage::~ZmqMessage() {
  zmq_api().msg_close(&raw_);
}

const std::byte* ZmqMessage::data() const {
  return static_cast<const std::byte*>(zmq_api().msg_data(&raw_));
}
std::span<std::byte> ZmqMessage::bytes() {
  return {static_cast<std::byte*>(zmq_api().msg_data(&raw_)), size()};
}
std::string ZmqMessage::sender() const {
  const char* address = zmq_api().msg_gets(&raw_, "Peer-Address");
  return address ? address : "an unknown address";
}
std::optional<int> ZmqMessage::connection() const {
  const char* number = zmq_api().msg_gets(&raw_, "__fd");
  return number ? std::optional(std::atoi(number)) : std::nullopt;
}
ZmqMessage ZmqMessage::share() const {
  ZmqMessage copy;
  if (zmq_api().msg_copy(copy.raw(), &raw_) != 0) throw_zmq("zmq_msg_copy");
  return copy;
}
std::size_t ZmqMessage::size() const {
  return zmq_api().msg_size(&raw_);
}

}  // namespace vccl
