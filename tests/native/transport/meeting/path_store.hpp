// A store that leads all links of a group over proxies, and groups that are made over it.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "tests/native/transport/harness.hpp"
#include "tests/native/transport/links/on_path.hpp"
#include "transport/msgpack.hpp"

namespace vccl {

/// Calls of the judge do not overlap.
class PathStore final : public MemoryStore {
 public:
  using Then = OnPath::Then;
  /// Says what becomes of a piece. `link` is the key of the record that tells where to connect, and the field
  /// of the record, for instance "link/1 stream".
  using Judge =
      std::function<Then(const std::string& link, const OnPath::Passing& passing, std::string& piece)>;

  /// Calls before_set(key) before a key is set.
  explicit PathStore(Judge judge, std::function<void(const std::string& key)> before_set = {})
      : judge_(std::move(judge)), before_set_(std::move(before_set)) {}

  void set(const std::string& key, const std::string& value) override {
    if (before_set_) before_set_(key);
    if (!is_of_link(key)) return MemoryStore::set(key, value);
    msgpack::Map fields = msgpack::decode(value).as_map();
    for (const char* field : {"endpoint", "stream"})
      if (fields.contains(field)) fields[field] = over_path(key + " " + field, fields[field].as_string());
    MemoryStore::set(key, msgpack::encode(fields));
  }

  /// The proxy of a link whose record was set.
  OnPath& path_of(const std::string& link) {
    std::lock_guard lock(mutex_);
    for (Proxy& proxy : proxies_)
      if (proxy.link == link) return proxy.path;
    throw check::Failure("there is no proxy of " + link);
  }

 private:
  struct Proxy {
    Proxy(std::string of_link, const std::string& endpoint, OnPath::Judge judge)
        : link(std::move(of_link)), path(endpoint, std::move(judge)) {}
    const std::string link;
    OnPath path;
  };

  static bool is_of_link(const std::string& key) {
    return key.starts_with("link/") || key.starts_with("across/") || key.starts_with("leap") ||
           key.starts_with("messages/");
  }

  std::string over_path(const std::string& link, const std::string& endpoint) {
    if (endpoint.empty()) return endpoint;
    std::lock_guard lock(mutex_);
    proxies_.emplace_back(link, endpoint, [this, link](const OnPath::Passing& passing, std::string& piece) {
      std::lock_guard judging(judging_);
      return judge_(link, passing, piece);
    });
    return proxies_.back().path.endpoint();
  }

  std::mutex mutex_, judging_;
  const Judge judge_;
  const std::function<void(const std::string&)> before_set_;
  std::list<Proxy> proxies_;
};

/// Makes a group of ranks on the hosts that `hosts` names, one letter a rank.
inline std::shared_ptr<Communicator> make_over(Store& store, const std::string& hosts, int rank) {
  CommunicatorConfig config = test_config(rank, static_cast<int>(hosts.size()));
  config.host_id = hosts.substr(static_cast<std::size_t>(rank), 1);
  return Communicator::create(store, config);
}

}  // namespace vccl
