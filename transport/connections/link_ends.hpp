// Tells the connections of this process's links from those of the program.
#pragma once

#include <sys/socket.h>

#include <string>

namespace vccl {

/// Makes an endpoint known as one of a link, as long as the object lives: one where this process listens, or
/// one to which it connects.
class LinkEnd {
 public:
  enum class Side { here, there };

  LinkEnd() = default;
  /// `endpoint` is like "tcp://10.0.0.7:40001" or "tcp://[2001:db8::7]:40001".
  LinkEnd(Side side, const std::string& endpoint);
  LinkEnd(LinkEnd&& other) noexcept;
  LinkEnd& operator=(LinkEnd&& other) noexcept;
  ~LinkEnd();

  /// Returns whether any endpoint is known.
  static bool any() noexcept;
  /// Returns whether a descriptor is a connection of a link, made or being made. Listening sockets are none.
  static bool is_of(int descriptor) noexcept;
  /// Returns whether this process listens there for a link.
  static bool listens(int descriptor) noexcept;
  /// Returns whether the peer of a link listens at this address.
  static bool is_peer(const sockaddr* address, socklen_t size) noexcept;

 private:
  Side side_ = Side::here;
  std::string place_;  // empty for none
};

}  // namespace vccl
