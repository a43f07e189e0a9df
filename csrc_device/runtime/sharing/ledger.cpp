#include "csrc_device/runtime/sharing/ledger.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/byte_lock.hpp"
#include "base/clock.hpp"
#include "base/fork.hpp"
#include "base/sealed_memory.hpp"
#include "base/text.hpp"
#include "csrc_device/runtime/error.hpp"

namespace vdev {
namespace {

constexpr std::uint64_t kMagic = 0x7265676465'6c7664;  // "dvledger", with the lowest byte first
constexpr std::uint32_t kVersion = 1;
constexpr std::int64_t kPatience = 10'000'000'000;  // ns: the owner's lock lasts for microseconds

std::uint64_t word(std::uint32_t generation, std::uint32_t messages) {
  return std::uint64_t{generation} << 32 | messages;
}
std::uint32_t generation_of(std::uint64_t entry) {
  return static_cast<std::uint32_t>(entry >> 32);
}
std::uint32_t messages_of(std::uint64_t entry) {
  return static_cast<std::uint32_t>(entry);
}

/// Takes a message of the generation off the entry. Does nothing if there is none, as when one message was
/// received twice.
void take_off(std::atomic<std::uint64_t>& entry, std::uint32_t generation) {
  // The exchange releases, and the owner's load in try_close() acquires: what the receiver did before is done
  // when the owner sees no message.
  auto seen = entry.load(std::memory_order_relaxed);
  while (generation_of(seen) == generation && messages_of(seen) != 0 &&
         !entry.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel, std::memory_order_relaxed)) {
  }
}

}  // namespace

/// Is what the file holds.
struct LedgerFile::Content {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t reserved;
  Nonce nonce;
  alignas(4096) std::atomic<std::uint64_t> entries[kSlots];  // the generation (high half) and the messages
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "processes share the entries");
constexpr std::size_t LedgerFile::kBytes = sizeof(LedgerFile::Content);

LedgerFile::LedgerFile(base::FileDescriptor file) : file_(std::move(file)) {
  void* mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_.get(), 0);
  if (mapped == MAP_FAILED) throw base::SystemError("mmap of a ledger", errno);
  content_ = static_cast<Content*>(mapped);
}

LedgerFile::~LedgerFile() {
  ::munmap(content_, kBytes);
}

bool LedgerFile::lock(std::uint32_t slot, int type) const {
  return base::lock_byte(file_.get(), slot, type);
}

namespace {

base::FileDescriptor make_file() {
  try {
    return base::make_sealed_memory("vdev:ledger", LedgerFile::kBytes);
  } catch (const base::SystemError& error) {
    throw CardError(base::text("the ledger of shared card memory cannot be made: ", error.what()));
  }
}

}  // namespace

// --- of this process ---

Ledger::Ledger() : file_(make_file()), identity_(base::identify_file(file_.fd())) {
  std::size_t filled = 0;
  while (filled < nonce_.size()) {
    const auto got = ::getrandom(nonce_.data() + filled, nonce_.size() - filled, 0);
    if (got < 0 && errno != EINTR) throw CardError(base::text("getrandom failed: ", std::strerror(errno)));
    if (got > 0) filled += static_cast<std::size_t>(got);
  }
  auto& content = file_.content();
  content.nonce = nonce_;
  content.version = kVersion;
  content.magic = kMagic;
}

Lease Ledger::open() {
  std::lock_guard lock(mutex_);
  std::uint32_t slot = 0;
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else if (used_ < LedgerFile::kSlots) {
    slot = used_++;
  } else {
    throw CardError(base::text("a process cannot share more than ", LedgerFile::kSlots,
                               " blocks of card memory at a time with other processes"));
  }
  auto& entry = file_.content().entries[slot];
  // Relaxed: other processes learn of the generation from a message, whose way orders the two. Generation 0
  // stands for no block.
  std::uint32_t generation = generation_of(entry.load(std::memory_order_relaxed)) + 1;
  if (generation == 0) generation = 1;
  entry.store(word(generation, 0), std::memory_order_relaxed);
  return {slot, generation};
}

void Ledger::add_message(Lease lease) {
  // Relaxed, as in open().
  file_.content().entries[lease.slot].fetch_add(1, std::memory_order_relaxed);
}

void Ledger::take_message(Lease lease) {
  take_off(file_.content().entries[lease.slot], lease.generation);
}

bool Ledger::try_close(Lease lease) {
  std::lock_guard lock(mutex_);
  auto& entry = file_.content().entries[lease.slot];
  // The loads acquire, and take_off() releases. The first one saves the system calls.
  if (messages_of(entry.load(std::memory_order_acquire)) != 0) return false;
  if (!file_.lock(lease.slot, F_WRLCK)) return false;
  // Only who holds the block passes it on, so no message can come while the lock excludes all holders.
  const bool unused = messages_of(entry.load(std::memory_order_acquire)) == 0;
  if (unused) entry.store(word(lease.generation + 1, 0), std::memory_order_release);
  file_.lock(lease.slot, F_UNLCK);
  if (unused) free_.push_back(lease.slot);
  return unused;
}

Ledger& process_ledger() {
  static base::OnePerProcess<Ledger> one;
  return one.get();
}

// --- of another process ---

PeerLedger::PeerLedger(base::FileDescriptor file, const Nonce& nonce)
    : file_([&] {
        base::check_sealed_memory(file.get());
        if (base::identify_file(file.get()).bytes != LedgerFile::kBytes)
          throw base::FileRefused("its ledger has another size; is another version of vccl used there?");
        return std::move(file);
      }()) {
  const std::uint32_t version = file_.content().version;
  if (version != kVersion) {
    throw base::FileRefused(base::text("its ledger has version ", version,
                                       ", and this version of vccl reads version ", kVersion));
  }
  check(nonce);
}

void PeerLedger::check(const Nonce& nonce) const {
  const auto& content = file_.content();
  if (content.magic != kMagic || content.nonce != nonce)
    throw base::FileRefused("its file is not the ledger that was announced");
}

std::atomic<std::uint64_t>& PeerLedger::entry(Lease lease) {
  return file_.content().entries[lease.slot];
}

void PeerLedger::hold(Lease lease) {
  if (lease.slot >= LedgerFile::kSlots || lease.generation == 0)
    throw CardError("the message names no block of its sender's ledger");
  const std::int64_t deadline = base::monotonic_ns() + kPatience;
  while (!file_.lock(lease.slot, F_RDLCK)) {
    if (base::monotonic_ns() > deadline)
      throw CardError("its sender has kept the block's entry in the ledger locked for 10 seconds");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // From here on the owner cannot close the entry. The load pairs with the store in try_close().
  if (generation_of(entry(lease).load(std::memory_order_acquire)) != lease.generation) {
    file_.lock(lease.slot, F_UNLCK);
    throw CardError(kFreedAlready);
  }
}

void PeerLedger::let_go(Lease lease) {
  file_.lock(lease.slot, F_UNLCK);
}

void PeerLedger::add_message(Lease lease) {
  entry(lease).fetch_add(1, std::memory_order_relaxed);  // the owner cannot close the entry meanwhile
}

void PeerLedger::take_message(Lease lease) {
  take_off(entry(lease), lease.generation);
}

}  // namespace vdev
