#include "faults/process/ends.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>

namespace vccl::faults {
namespace {

timespec time_of(double seconds) {
  const double whole = std::floor(seconds);
  return {static_cast<time_t>(whole), static_cast<long>((seconds - whole) * 1e9)};
}

/// Restores the default action of a signal, which a handler of the program or of Python may have taken, and
/// raises it in the calling thread.
void end_by(int signal) {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  ::sigaction(signal, &action, nullptr);
  sigset_t only;
  ::sigemptyset(&only);
  ::sigaddset(&only, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  ::raise(signal);
}

/// Stops the process. A child continues it after `seconds`, unless they are 0. The child ends with this
/// process.
void stop(double seconds) {
  const pid_t self = ::getpid();
  pid_t child = 0;
  if (seconds > 0) {
    const timespec time = time_of(seconds);
    // Not fork(): its handlers would make the child a rank's child for the rest of the library.
    child = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::syscall(SYS_close_range, 0u, ~0u, 0u);
      timespec left = time;
      while (::getppid() == self && ::nanosleep(&left, &left) != 0 && errno == EINTR) {
      }
      if (::getppid() == self) ::kill(self, SIGCONT);
      ::_exit(0);
    }
    if (child < 0) return sleep_for_seconds(seconds);  // no process can be had: only this thread stops
  }
  ::kill(self, SIGSTOP);
  if (child > 0)
    while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
}

}  // namespace

void sleep_for_seconds(double seconds) {
  timespec left = time_of(seconds);
  while (::nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

void strike_process(const Fault& fault) {
  switch (fault.kind) {
    case Kind::kill:
      ::kill(::getpid(), SIGKILL);
      ::pause();  // until the signal comes
      return;
    case Kind::segv:
      return end_by(SIGSEGV);
    case Kind::abort:
      return end_by(SIGABRT);
    case Kind::exit:
      ::_exit(static_cast<int>(fault.amount));
    case Kind::stop:
      return stop(fault.amount);
    case Kind::stall:
    case Kind::late:
      return sleep_for_seconds(fault.amount);
    default:
      return;
  }
}

}  // namespace vccl::faults
