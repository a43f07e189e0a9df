// libzmq's C interface, as much of it as the links use, loaded at run time: the copy in the pyzmq wheel
// serves as well as a system's, and neither its headers nor a linked library are needed to build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace vccl {

/// zmq_msg_t: 64 opaque bytes in every libzmq since 4.1.
struct alignas(void*) ZmqRawMessage {
  unsigned char bytes[64];
};

/// zmq_pollitem_t.
struct ZmqPollItem {
  void* socket;
  int fd;
  short events;
  short revents;
};

/// zmq.h's numbers.
namespace zmq_constant {
constexpr int kPair = 0, kDealer = 5, kRouter = 6;
constexpr int kDontWait = 1, kSendMore = 2;
constexpr short kPollIn = 1, kPollOut = 2;
constexpr int kDescriptor = 14, kEvents = 15, kLinger = 17, kMaxMessageSize = 22, kLastEndpoint = 32;
constexpr int kRouterMandatory = 33, kIpv6 = 42;
constexpr int kCurveServer = 47, kCurvePublicKey = 48, kCurveSecretKey = 49, kCurveServerKey = 50;
constexpr int kHeartbeatInterval = 75, kHeartbeatTimeToLive = 76, kHeartbeatTimeout = 77;
constexpr int kContextMaxSockets = 2, kContextBlocky = 70;
constexpr int kEventClosed = 0x0080, kEventDisconnected = 0x0200;
}  // namespace zmq_constant

struct ZmqApi {
  void* (*ctx_new)();
  int (*ctx_term)(void* context);
  int (*ctx_set)(void* context, int option, int value);
  void* (*socket)(void* context, int type);
  int (*close)(void* socket);
  int (*bind)(void* socket, const char* endpoint);
  int (*connect)(void* socket, const char* endpoint);
  int (*setsockopt)(void* socket, int option, const void* value, std::size_t size);
  int (*getsockopt)(void* socket, int option, void* value, std::size_t* size);
  int (*socket_monitor)(void* socket, const char* endpoint, int events);
  int (*poll)(ZmqPollItem* items, int count, long milliseconds);
  int (*msg_init)(ZmqRawMessage*);
  int (*msg_init_size)(ZmqRawMessage*, std::size_t size);
  int (*msg_init_data)(ZmqRawMessage*, void* data, std::size_t size, void (*free)(void* data, void* hint),
                       void* hint);
  void* (*msg_data)(ZmqRawMessage*);
  std::size_t (*msg_size)(const ZmqRawMessage*);
  int (*msg_more)(const ZmqRawMessage*);
  int (*msg_close)(ZmqRawMessage*);
  int (*msg_send)(ZmqRawMessage*, void* socket, int flags);
  int (*msg_recv)(ZmqRawMessage*, void* socket, int flags);
  int (*error)();
  const char* (*error_text)(int number);
  int (*has)(const char* capability);
  int (*curve_keypair)(char* public_key, char* secret_key);
  void (*version)(int* major, int* minor, int* patch);

  std::string path;  // of the library
};

/// Where to look first when VCCL_ZMQ_LIBRARY is not set: Python passes the pyzmq wheel's copy. Has no effect
/// once the library is loaded.
void set_zmq_library_path(const std::string& path);

/// The library, loaded at the first call: VCCL_ZMQ_LIBRARY alone if that is set, else the path set above,
/// else the system's. Throws Error(system) saying what was tried and what to do. Thread-safe.
const ZmqApi& zmq_api();

/// Error(system) with libzmq's text.
[[noreturn]] void throw_zmq(const std::string& what);

/// The process's context: made with its first link, ended with its last.
class ZmqContext {
 public:
  static std::shared_ptr<ZmqContext> acquire();
  ~ZmqContext();
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;
  void* get() const { return context_; }

 private:
  ZmqContext();
  void* context_;
  int owner_;
};

/// Owns one message frame.
class ZmqMessage {
 public:
  ZmqMessage();
  explicit ZmqMessage(const std::string& bytes);
  /// A frame that shows `data` without copying it, until libzmq has called `free(data, hint)` on any thread.
  ZmqMessage(void* data, std::size_t size, void (*free)(void* data, void* hint), void* hint);
  ZmqMessage(ZmqMessage&& other) noexcept;
  ZmqMessage& operator=(ZmqMessage&& other) noexcept;
  ~ZmqMessage();

  const std::byte* data() const;
  std::size_t size() const;
  ZmqRawMessage* raw() { return &raw_; }

 private:
  mutable ZmqRawMessage raw_;
};

}  // namespace vccl
