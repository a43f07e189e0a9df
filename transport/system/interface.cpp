#include "transport/system/interface.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <vector>

#include "base/text.hpp"
#include "transport/system/shared_memory.hpp"

namespace vccl {
namespace {

struct Interface {
  std::string name;
  std::string address;
  bool version_6;
};

std::vector<Interface> interfaces() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) throw_system("getifaddrs");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> guard(first, freeifaddrs);
  std::vector<Interface> result;
  for (const ifaddrs* entry = first; entry; entry = entry->ifa_next) {
    if (!entry->ifa_addr || !(entry->ifa_flags & IFF_UP)) continue;
    char text[INET6_ADDRSTRLEN];
    if (entry->ifa_addr->sa_family == AF_INET) {
      const auto* address = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
      inet_ntop(AF_INET, &address->sin_addr, text, sizeof text);
      result.push_back({entry->ifa_name, text, false});
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      const auto* address = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
      // A link-local address is useless to a peer without the name of the peer's own interface.
      if (IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr)) continue;
      inet_ntop(AF_INET6, &address->sin6_addr, text, sizeof text);
      result.push_back({entry->ifa_name, base::text("[", text, "]"), true});
    }
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const Interface& a, const Interface& b) { return a.version_6 < b.version_6; });
  return result;
}

/// Returns whether VCCL_SOCKET_IFNAME chooses the interface.
bool wanted_name(std::string pattern, const std::string& name) {
  const bool exclude = pattern.starts_with('^');
  if (exclude) pattern.erase(0, 1);
  const bool exact = pattern.starts_with('=');
  if (exact) pattern.erase(0, 1);
  std::istringstream list(pattern);
  bool listed = false;
  for (std::string part; std::getline(list, part, ',');) {
    if (!part.empty()) listed |= exact ? name == part : name.starts_with(part);
  }
  return listed != exclude;
}

bool loopback(const Interface& interface) {
  return interface.name == "lo";
}
bool bridge(const Interface& interface) {
  return interface.name.starts_with("docker") || interface.name.starts_with("virbr") ||
         interface.name.starts_with("veth");
}

}  // namespace

std::string interface_address(const std::string& wanted, bool one_machine) {
  const std::vector<Interface> all = interfaces();
  const auto first = [&](auto fits) -> const Interface* {
    const auto found = std::find_if(all.begin(), all.end(), fits);
    return found == all.end() ? nullptr : &*found;
  };
  if (wanted.empty() && one_machine) return "127.0.0.1";
  const Interface* chosen = !wanted.empty()
                                ? first([&](const Interface& i) { return wanted_name(wanted, i.name); })
                                : first([](const Interface& i) { return !loopback(i) && !bridge(i); });
  if (!chosen && wanted.empty()) chosen = first([](const Interface& i) { return !loopback(i); });
  if (chosen) return chosen->address;
  std::string names;
  for (const Interface& interface : all) {
    names += base::text(names.empty() ? "" : ", ", interface.name, " ", interface.address);
  }
  throw Error(
      ErrorCode::bootstrap,
      base::text(wanted.empty()
                     ? std::string("no network interface but loopback is up, and the ranks are on several "
                                   "hosts")
                     : base::text("VCCL_SOCKET_IFNAME=", wanted, " matches no network interface that is up"),
                 " (there are: ", names, ")"));
}

}  // namespace vccl
