#include "transport/link_faults.hpp"

#include <dirent.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "base/fork.hpp"
#include "base/hash.hpp"
#include "transport/connections/connection_guard.hpp"
#include "transport/connections/link_ends.hpp"
#include "transport/link_faults/foreign_memory.hpp"
#include "transport/link_faults/kept_bytes.hpp"
#include "transport/link_faults/replaced_calls.hpp"

namespace vccl::link_faults {
namespace {

constexpr std::size_t kPiece = 64 * 1024;  // bytes
// A piece that is lost more often than this would outlast every timeout.
constexpr int kMostLosses = 8;

struct State {
  // Whether libzmq's calls are to be looked at. All else is guarded by the mutex.
  std::atomic<bool> on{false};
  std::mutex mutex;
  Clock::time_point cut_until{};
  bool drops = false;
  Milliseconds delay{0};
  double lost = 0;
  std::uint64_t seed = 0, pieces = 0;
  std::map<ino_t, bool> known;  // which connections are those of links
  KeptBytes kept;
};

State& state() {
  static base::OnePerProcess<State> one;
  return one.get();
}

ino_t number_of(int descriptor) {
  struct stat status;
  return fstat(descriptor, &status) == 0 ? status.st_ino : 0;
}

/// Returns after how long the next piece leaves. The mutex is held.
Milliseconds time_of_piece(State& all) {
  Milliseconds time = all.delay, pause = kRepeated;
  if (all.lost <= 0) return time;
  const std::uint64_t piece = ++all.pieces;
  for (std::uint64_t i = 0; i < kMostLosses; ++i, pause *= 2) {
    const std::uint64_t draw = base::mix_bits(base::mix_bits(all.seed ^ base::mix_bits(piece)) ^ i);
    if (static_cast<double>(draw >> 11) / static_cast<double>(std::uint64_t{1} << 53) >= all.lost) break;
    time += pause;
  }
  return time;
}

ssize_t send_of_libzmq(int descriptor, const void* data, std::size_t size, int flags) {
  const ForeignMemory data_of_libzmq;
  return ::send(descriptor, data, size, flags);
}

ssize_t send_with_faults(int descriptor, const void* data, std::size_t size, int flags) {
  State& all = state();
  if (!all.on.load(std::memory_order_acquire)) return send_of_libzmq(descriptor, data, size, flags);
  const ino_t connection = number_of(descriptor);
  std::unique_lock lock(all.mutex);
  if (!all.drops && all.delay == Milliseconds(0) && all.lost <= 0 && all.kept.empty())
    all.on.store(false, std::memory_order_release);  // the faults are over
  auto found = all.known.find(connection);
  if (found == all.known.end())
    found = all.known.emplace(connection, LinkEnd::is_of(descriptor) || all.kept.holds(connection)).first;
  if (found->second && all.drops) return static_cast<ssize_t>(size);
  if (found->second && size > 0) {
    const std::size_t piece = std::min(size, kPiece);
    const Milliseconds time = time_of_piece(all);
    if ((time > Milliseconds(0) || all.kept.holds(connection)) &&
        all.kept.keep(connection, descriptor, data, piece, Clock::now() + time))
      return static_cast<ssize_t>(piece);
    size = piece;
  }
  lock.unlock();
  return send_of_libzmq(descriptor, data, size, flags);
}

/// libzmq closes the connection when it hears of the error. Until then it has not used it.
void reset_connection(int descriptor) noexcept {
  const linger at_once{1, 0};
  setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  ::close(descriptor);
}

int connect_with_faults(int descriptor, const sockaddr* address, socklen_t size) {
  if (is_cut() && LinkEnd::is_peer(address, size)) {
    errno = ECONNREFUSED;
    return -1;
  }
  const ForeignMemory address_of_libzmq;
  return ::connect(descriptor, address, size);
}

int accept4_with_faults(int listening, sockaddr* address, socklen_t* size, int flags) {
  const int accepted = ::accept4(listening, address, size, flags);
  if (accepted < 0 || !is_cut() || !LinkEnd::listens(listening)) return accepted;
  reset_connection(accepted);
  errno = ECONNABORTED;
  return -1;
}

int accept_with_faults(int listening, sockaddr* address, socklen_t* size) {
  return accept4_with_faults(listening, address, size, 0);
}

template <class Function>
bool replace(const char* name, Function* function) {
  return replace_call(name, reinterpret_cast<void*>(function));
}

const char kNoLink[] = "this process has no link to another host";
const char kUnchangeable[] = "this libzmq does not let its calls of the system be replaced";

bool catch_sends() {
  static const bool caught = replace("send", &send_with_faults);
  return caught;
}

bool catch_connections() {
  static const bool caught = replace("connect", &connect_with_faults) &&
                             (static_cast<int>(replace("accept4", &accept4_with_faults)) |
                              static_cast<int>(replace("accept", &accept_with_faults))) != 0;
  return caught;
}

/// Calls change(state) for a fault of what is sent.
template <class Change>
std::string change_sends(Change change) {
  if (!LinkEnd::any()) return kNoLink;
  if (!catch_sends()) return kUnchangeable;
  State& all = state();
  std::lock_guard lock(all.mutex);
  change(all);
  all.on.store(true, std::memory_order_release);
  return "";
}

std::vector<int> descriptors() {
  std::vector<int> found;
  DIR* const folder = opendir("/proc/self/fd");
  if (!folder) return found;
  while (const dirent* entry = readdir(folder)) {
    char* end = nullptr;
    const long number = std::strtol(entry->d_name, &end, 10);
    if (end != entry->d_name && number != dirfd(folder)) found.push_back(static_cast<int>(number));
  }
  closedir(folder);
  return found;
}

/// Returns how many connections there were.
int reset_all() {
  int count = 0;
  for (const int number : descriptors()) {
    if (!LinkEnd::is_of(number)) continue;
    // libzmq may have closed the descriptor meanwhile, and the number may be that of another file.
    const ConnectionHandle connection(number);
    if (!LinkEnd::is_of(connection.number())) continue;
    connection.reset();
    ++count;
  }
  return count;
}

}  // namespace

std::string reset() {
  return reset_all() > 0 ? "" : LinkEnd::any() ? "no link to another host has a connection now" : kNoLink;
}

std::string cut(Milliseconds time) {
  if (!LinkEnd::any()) return kNoLink;
  if (!catch_connections()) return kUnchangeable;
  {
    State& all = state();
    std::lock_guard lock(all.mutex);
    all.cut_until = std::max(all.cut_until, Clock::now() + time);
  }
  reset_all();
  return "";
}

std::string drop() {
  return change_sends([](State& all) { all.drops = true; });
}

std::string delay(Milliseconds time) {
  return change_sends([time](State& all) { all.delay = std::min(time, kLongestDelay); });
}

std::string lose(double probability, std::uint64_t seed) {
  return change_sends([=](State& all) {
    all.lost = probability;
    all.seed = seed;
    all.pieces = 0;
  });
}

void heal() noexcept {
  State& all = state();
  std::lock_guard lock(all.mutex);
  all.cut_until = {};
  all.drops = false;
  all.delay = Milliseconds(0);
  all.lost = 0;
  // What comes behind something that is kept has to wait for it, so `on` stays until nothing is.
  all.kept.hurry();
}

bool is_cut() noexcept {
  State& all = state();
  std::lock_guard lock(all.mutex);
  return Clock::now() < all.cut_until;
}

void let_kept_leave() noexcept {
  constexpr Milliseconds kMore{1'000};
  State& all = state();
  if (all.on.load(std::memory_order_acquire)) all.kept.wait(kMore);
}

}  // namespace vccl::link_faults
