// Keeps signals away from this project's threads, because handlers must run on the program's own threads.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace base {

/// Blocks all signals of the calling thread until it is destroyed. A thread that is started meanwhile
/// inherits the blocked signals.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace base
