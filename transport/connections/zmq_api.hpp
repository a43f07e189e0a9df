// The part of libzmq's C interface that the links use. libzmq is loaded at run time: the copy in the pyzmq
// wheel serves as well as a system's, and building needs neither its headers nor the library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/fork.hpp"

namespace vccl {

/// Has the layout of zmq_msg_t: 64 opaque bytes in every libzmq since 4.1.
struct alignas(void*) ZmqRawMessage {
  unsigned char bytes[64];
};

/// Has the layout of zmq_pollitem_t.
struct ZmqPollItem {
  void* socket;
  int fd;
  short events;
  short revents;
};

/// The constants of zmq.h.
namespace zmq_constant {
constexpr int kPair = 0, kDealer = 5, kRouter = 6, kPull = 7, kPush = 8;
constexpr int kDontWait = 1, kSendMore = 2;
constexpr short kPollIn = 1, kPollOut = 2;
constexpr int kDescriptor = 14, kEvents = 15, kLinger = 17, kMaxMessageSize = 22, kReceiveMark = 24;
constexpr int kLastEndpoint = 32;
constexpr int kRouterMandatory = 33, kIpv6 = 42;
constexpr int kCurveServer = 47, kCurvePublicKey = 48, kCurveSecretKey = 49, kCurveServerKey = 50;
constexpr int kKeepalive = 34, kKeepaliveIdle = 36, kReconnectInterval = 18;
constexpr int kHeartbeatInterval = 75, kHeartbeatTimeout = 77, kHandshakeTime = 66, kUseDescriptor = 89;
constexpr int kContextMaxSockets = 2, kContextBlocky = 70;
constexpr int kEventConnected = 0x0001, kEventAccepted = 0x0020, kEventClosed = 0x0080,
              kEventDisconnected = 0x0200;
constexpr int kEventHandshakeEnded = 0x0800, kEventHandshakeSucceeded = 0x1000,
              kEventHandshakeProtocol = 0x2000, kEventHandshakeDenied = 0x4000;
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
  const char* (*msg_gets)(const ZmqRawMessage*, const char* property);
  int (*msg_copy)(ZmqRawMessage* copy, ZmqRawMessage* source);
  int (*msg_close)(ZmqRawMessage*);
  int (*msg_send)(ZmqRawMessage*, void* socket, int flags);
  int (*msg_recv)(ZmqRawMessage*, void* socket, int flags);
  int (*error)();
  const char* (*error_text)(int number);
  int (*has)(const char* capability);
  int (*curve_keypair)(char* public_key, char* secret_key);
  void (*version)(int* major, int* minor, int* patch);

  std::string path;  // the path of the loaded library
};

/// Returns the library, which the first call loads. If VCCL_ZMQ_LIBRARY is set, only that path is tried.
/// Otherwise the path of set_zmq_library_path() is tried, and then the system's library. Throws
/// Error(system), which says what was tried and what to do. Thread-safe.
const ZmqApi& zmq_api();

/// Throws Error(system) with libzmq's error text.
[[noreturn]] void throw_zmq(const std::string& what);

class ConnectionGuard;

/// The process's ZeroMQ context. It is made with the first link and ended with the last.
class ZmqContext {
 public:
  /// The number of descriptors that the context takes, including its guard's.
  static constexpr std::size_t kDescriptors = 6;

  /// Returns the context. Throws Error(system), also if libzmq would run out of descriptors.
  static std::shared_ptr<ZmqContext> acquire();
  static bool exists();
  ~ZmqContext();
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;
  void* get() const { return context_; }
  ConnectionGuard& connection_guard() { return *guard_; }

 private:
  ZmqContext();
  void* context_;
  const base::ProcessMark made_;
  std::unique_ptr<ConnectionGuard> guard_;
};

/// Owns one message frame.
class ZmqMessage {
 public:
  ZmqMessage();
  explicit ZmqMessage(const std::string& bytes);
  /// Makes a frame that refers to `data` without a copy. The bytes must stay until libzmq has called
  /// `free(data, hint)`, which may happen on any thread.
  ZmqMessage(void* data, std::size_t size, void (*free)(void* data, void* hint), void* hint);
  ZmqMessage(ZmqMessage&& other) noexcept;
  ZmqMessage& operator=(ZmqMessage&& other) noexcept;
  ~ZmqMessage();

  const std::byte* data() const;
  /// Returns the bytes for writing. A frame that was received belongs to the receiver alone.
  std::span<std::byte> bytes();
  std::size_t size() const;
  /// Returns the address of the other end of the connection that a received frame came over.
  std::string sender() const;
  /// Returns libzmq's descriptor of that connection.
  std::optional<int> connection() const;
  /// Returns another frame with the same content, which is shared and not copied unless it is a few bytes.
  ZmqMessage share() const;
  ZmqRawMessage* raw() { return &raw_; }

 private:
  mutable ZmqRawMessage raw_;
};

}  // namespace vccl
