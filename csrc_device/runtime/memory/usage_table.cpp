#include "csrc_device/runtime/memory/usage_table.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <thread>
#include <utility>

#include "base/byte_lock.hpp"
#include "base/clock.hpp"
#include "base/fork.hpp"
#include "base/hash.hpp"
#include "base/system_calls.hpp"
#include "base/text.hpp"

namespace vdev {
namespace {

constexpr std::uint64_t kMagic = 0x65676173'75'7664;  // "dvusage", with the lowest byte first
constexpr std::size_t kSlots = 1024;
constexpr std::size_t kTableLock = kSlots;  // the byte of the file that is locked for changes of the table
constexpr std::int64_t kPatience = 1'000'000'000;  // ns: the lock lasts for microseconds

/// Returns the beginning of this process's command line, without the folder of the program.
std::string command_line() {
  constexpr std::size_t kMost = 80;
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string line{std::istreambuf_iterator<char>(file), {}};
  if (const auto folder = line.substr(0, line.find('\0')).rfind('/'); folder != std::string::npos)
    line.erase(0, folder + 1);
  while (!line.empty() && line.back() == '\0') line.pop_back();
  std::ranges::replace_if(line, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  if (line.size() > kMost) {
    line.resize(kMost - 3);
    line += "...";
  }
  return line;
}

std::string refused(const std::string& path, const char* call, int code) {
  return base::text(call, " of ", path, ": ", std::strerror(code));
}

}  // namespace

/// Is what one process has written. Only its own process changes it, and whoever finds it dead.
struct UsageTable::Entry {
  std::int32_t pid;
  std::uint32_t unused;
  std::uint64_t namespace_device, namespace_inode;
  std::uint64_t host, capacity;
  char name[88];
  std::atomic<std::uint64_t> bytes[kMostCards];  // by the physical card
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "processes share the entries");

struct UsageTable::Content {
  std::atomic<std::uint64_t> magic;
  // The entries from here on were never used. Their pages may be holes of the file, which must not be read:
  // if /dev/shm is full, that would raise SIGBUS.
  std::atomic<std::uint64_t> used;
  alignas(4096) Entry entries[kSlots];
};

/// Holds the lock of the table, so that two processes do not refuse each other what only one of them asks
/// for. A process that was stopped while it holds the lock must not stop all others, so nobody waits for
/// long. Without the lock the table stays right: who reserves writes first, and then looks at what others
/// have written.
class UsageTable::Locked {
 public:
  explicit Locked(const UsageTable& table) : table_(table) {
    const std::int64_t deadline = base::monotonic_ns() + kPatience;
    while (!(locked_ = table_.lock(kTableLock, F_WRLCK)) && base::monotonic_ns() < deadline)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  ~Locked() {
    if (locked_) table_.lock(kTableLock, F_UNLCK);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  const UsageTable& table_;
  bool locked_ = false;
};

UsageTable::UsageTable(std::string path, CardSet cards) : path_(std::move(path)), cards_(cards) {}

UsageTable::~UsageTable() {
  close();
}

bool UsageTable::lock(std::size_t byte, int type) const noexcept {
  // A descriptor of the file that something else closes takes the lock away. enter() takes it again.
  return base::lock_byte(fd_, byte, type);
}

void UsageTable::close() noexcept {
  if (content_) ::munmap(content_, sizeof(Content));
  if (fd_ >= 0) ::close(fd_);
  content_ = nullptr;
  own_ = nullptr;
  fd_ = -1;
}

/// Opens and maps the file. Sets problem_ if that is not possible.
void UsageTable::open() {
  fd_ = base::open_file(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK, 0600);
  if (fd_ < 0) {
    problem_ = refused(path_, "open", errno);
    return;
  }
  struct stat status;
  if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != ::geteuid()) {
    problem_ = base::text(path_, " is not a file of this user");
    return close();
  }
  // All processes set the same length, so it does not matter who is first. The first page is for the header.
  int code = 0;
  if (static_cast<std::size_t>(status.st_size) != sizeof(Content) &&
      base::set_length(fd_, sizeof(Content)) != 0)
    code = errno;
  if (code == 0) code = base::allocate(fd_, 0, offsetof(Content, entries));
  if (code != 0) {
    problem_ = refused(path_, "allocation", code);
    return close();
  }
  void* mapped = ::mmap(nullptr, sizeof(Content), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (mapped == MAP_FAILED) {
    problem_ = refused(path_, "mmap", errno);
    return close();
  }
  content_ = static_cast<Content*>(mapped);
  std::uint64_t found = 0;
  if (!content_->magic.compare_exchange_strong(found, kMagic) && found != kMagic) {
    problem_ = base::text(path_, " is not a table of this version of vccl");
    close();
  }
}

/// Takes a free entry and fills it in. Returns false if there is none.
bool UsageTable::enter() {
  const Locked locked(*this);
  for (slot_ = 0; slot_ < kSlots && !lock(slot_, F_WRLCK); ++slot_) {
  }
  if (slot_ == kSlots) {
    problem_ = base::text(path_, " has no room for more than ", kSlots, " processes");
    return false;
  }
  const auto offset = static_cast<off_t>(offsetof(Content, entries) + slot_ * sizeof(Entry));
  if (const int code = base::allocate(fd_, offset, sizeof(Entry)); code != 0) {
    problem_ = refused(path_, "allocation", code);
    return false;
  }
  Entry& entry = content_->entries[slot_];
  entry.pid = ::getpid();
  struct stat status{};
  ::stat("/proc/self/ns/pid", &status);
  entry.namespace_device = status.st_dev;
  entry.namespace_inode = status.st_ino;
  entry.host = cards_.host;
  entry.capacity = cards_.capacity;
  std::memset(entry.name, 0, sizeof entry.name);
  const std::string name = command_line();
  std::memcpy(entry.name, name.data(), std::min(name.size(), sizeof entry.name - 1));
  for (std::size_t card = 0; card < mine_.size(); ++card) entry.bytes[card].store(mine_[card]);
  // Not a plain store: without the lock of the table, another process may raise the number further meanwhile.
  std::uint64_t used = content_->used.load();
  while (used <= slot_ && !content_->used.compare_exchange_weak(used, slot_ + 1)) {
  }
  own_ = &entry;
  return true;
}

/// Returns whether this process has its entry in the file that others use, too. Makes that so if it can.
bool UsageTable::ready() {
  for (int round = 0; problem_.empty() && round < 8; ++round) {
    if (!content_) open();
    if (!content_) break;
    if (own_ && !lock(slot_, F_WRLCK)) own_ = nullptr;  // the lock was lost, and the entry is another's now
    if (!own_ && !enter()) break;
    struct stat status;
    if (::fstat(fd_, &status) == 0 && status.st_nlink != 0) return true;
    close();  // The file was removed: by the process that was its last user, or at the end of a login
              // session.
  }
  if (problem_.empty()) problem_ = base::text(path_, " is removed again and again");
  close();
  return false;
}

std::size_t UsageTable::sum(int card) const {
  std::size_t all = 0;
  const auto used = std::min<std::size_t>(content_->used.load(), kSlots);
  for (std::size_t slot = 0; slot < used; ++slot) {
    const Entry& entry = content_->entries[slot];
    // The bytes are loaded first. The load pairs with the stores of enter() and reserve(), which come after
    // those of the other members: what is counted is compared with the cards that it was written for.
    const std::size_t bytes = entry.bytes[static_cast<std::size_t>(card)].load();
    if (entry.host == cards_.host && entry.capacity == cards_.capacity) all += bytes;
  }
  return all;
}

/// Clears the entries whose processes have ended. The caller holds the lock of the table.
void UsageTable::forget_the_dead() {
  const auto used = std::min<std::size_t>(content_->used.load(), kSlots);
  for (std::size_t slot = 0; slot < used; ++slot) {
    Entry& entry = content_->entries[slot];
    if (&entry == own_ || !lock(slot, F_WRLCK)) continue;
    for (auto& bytes : entry.bytes) bytes.store(0);
    lock(slot, F_UNLCK);
  }
}

bool UsageTable::reserve(int card, std::size_t bytes) {
  const std::lock_guard guard(mutex_);
  auto& mine = mine_[static_cast<std::size_t>(card)];
  if (!ready()) {
    if (bytes > cards_.capacity || mine > cards_.capacity - bytes) return false;
    mine += bytes;
    return true;
  }
  const Locked locked(*this);
  auto& noted = own_->bytes[static_cast<std::size_t>(card)];
  // The store comes before the loads of sum() in the one order of all sequentially consistent operations. Of
  // two processes that reserve at a time, at least one sees the other's.
  noted.store(mine + bytes);
  if (sum(card) > cards_.capacity) {
    forget_the_dead();
    if (sum(card) > cards_.capacity) {
      noted.store(mine);
      return false;
    }
  }
  mine += bytes;
  return true;
}

void UsageTable::give_back(int card, std::size_t bytes) {
  const std::lock_guard guard(mutex_);
  auto& mine = mine_[static_cast<std::size_t>(card)];
  mine -= bytes;
  if (own_) own_->bytes[static_cast<std::size_t>(card)].store(mine);
}

std::vector<CardUser> UsageTable::users(int card) {
  const std::lock_guard guard(mutex_);
  const auto index = static_cast<std::size_t>(card);
  std::vector<CardUser> found;
  if (!ready()) {
    if (mine_[index] != 0)
      found.push_back({.pid = ::getpid(), .self = true, .name = command_line(), .bytes = mine_[index]});
    return found;
  }
  const Locked locked(*this);
  forget_the_dead();
  const auto used = std::min<std::size_t>(content_->used.load(), kSlots);
  for (std::size_t slot = 0; slot < used; ++slot) {
    const Entry& entry = content_->entries[slot];
    const std::size_t bytes = entry.bytes[index].load();
    if (bytes == 0 || entry.host != cards_.host || entry.capacity != cards_.capacity) continue;
    const bool foreign =
        entry.namespace_device != own_->namespace_device || entry.namespace_inode != own_->namespace_inode;
    found.push_back({.pid = entry.pid,
                     .foreign = foreign,
                     .self = &entry == own_,
                     .name = std::string(entry.name, ::strnlen(entry.name, sizeof entry.name)),
                     .bytes = bytes});
  }
  return found;
}

std::size_t UsageTable::reserved(int card) {
  std::size_t all = 0;
  for (const CardUser& user : users(card)) all += user.bytes;
  return all;
}

std::string UsageTable::problem() {
  const std::lock_guard guard(mutex_);
  return problem_;
}

void UsageTable::leave() noexcept {
  const std::unique_lock guard(mutex_, std::try_to_lock);  // the process ends: nobody is waited for
  if (!guard || !own_) return;
  const Locked locked(*this);
  struct flock others{};
  others.l_type = F_WRLCK;
  others.l_whence = SEEK_SET;
  others.l_len = kSlots;
  struct stat own, named;
  const bool last = ::fcntl(fd_, F_GETLK, &others) == 0 && others.l_type == F_UNLCK;
  const bool same = ::fstat(fd_, &own) == 0 && ::lstat(path_.c_str(), &named) == 0 &&
                    own.st_ino == named.st_ino && own.st_dev == named.st_dev;
  // Who has opened the file meanwhile sees in ready() that it was removed.
  if (last && same) ::unlink(path_.c_str());
  // Of processes that end at the same time, the last one that comes here has to see that it is the last.
  lock(slot_, F_UNLCK);
  own_ = nullptr;
  problem_ = "the process is ending";
}

// --- of this process ---

namespace {

struct ProcessTable : UsageTable {
  ProcessTable()
      : UsageTable(base::text("/dev/shm/vdev-usage-1-", ::geteuid()),
                   {.host = base::hash_text(environment().host_id), .capacity = environment().card_memory}) {}
};

std::atomic<bool> table_was_opened{false};

}  // namespace

UsageTable& usage_table() {
  static base::OnePerProcess<ProcessTable> one;
  table_was_opened.store(true, std::memory_order_relaxed);
  return one.get();
}

void leave_usage_table() noexcept {
  if (table_was_opened.load(std::memory_order_relaxed)) usage_table().leave();
}

bool CardAccount::reserve(std::size_t bytes) {
  return card_ < 0 || usage_table().reserve(card_, bytes);
}

void CardAccount::give_back(std::size_t bytes) {
  if (card_ >= 0) usage_table().give_back(card_, bytes);
}

std::size_t CardAccount::left() const {
  if (card_ < 0) return SIZE_MAX;
  const std::size_t capacity = environment().card_memory;
  return capacity - std::min(capacity, usage_table().reserved(card_));
}

std::vector<CardUser> CardAccount::users() const {
  return card_ < 0 ? std::vector<CardUser>() : usage_table().users(card_);
}

}  // namespace vdev
