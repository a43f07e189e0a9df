// Faults of this process's links to other hosts, made on purpose (faults/faults.hpp has the plans).
//
// They lie between libzmq and the system. What libzmq sends on a link, its heartbeats too, is thrown away or
// kept for a time, and attempts to connect are refused. Connections of the program's own, which may use the
// same libzmq, are left alone. While there is no fault, libzmq calls the system directly.
#pragma once

#include <cstdint>
#include <string>

#include "transport/deadline.hpp"

namespace vccl::link_faults {

/// The longest delay(). A process that ends waits for what is kept.
inline constexpr Milliseconds kLongestDelay{60'000};
/// How long TCP waits at least before it repeats what was lost.
inline constexpr Milliseconds kRepeated{200};

// Each of these returns why it could do nothing, or an empty text. Thread-safe.

/// Ends all connections to other hosts at once, as a reset by a firewall does.
std::string reset();
/// Does the same, and lets no connection be made for `time`.
std::string cut(Milliseconds time);
/// From now on, nothing that this process sends arrives, and nobody is told.
std::string drop();
/// From now on, what this process sends leaves so much later. The order stays.
std::string delay(Milliseconds time);
/// From now on, a piece that this process sends is lost with this probability, and lost again with the same
/// one: it leaves after kRepeated, twice that, and so on. What is behind it waits, as in TCP. The draws come
/// from `seed`. A piece is what libzmq gives to the system at once, and at most 64 KiB.
std::string lose(double probability, std::uint64_t seed);
/// Ends what lasts. What is kept leaves now.
void heal() noexcept;

/// Returns whether cut() lasts.
bool is_cut() noexcept;
/// Blocks until nothing is kept any more, for at most a second longer than anything is to be kept.
void let_kept_leave() noexcept;

}  // namespace vccl::link_faults
