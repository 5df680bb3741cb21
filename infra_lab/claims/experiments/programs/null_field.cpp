// Reads or writes a field 16 bytes into a structure at address 0. "tell": a handler prints the
// address and, on x86-64, the error code of the page fault, and ends the process. "crash": nothing
// is handled.
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

struct Request {
  long id;
  long length;
  long batch_size;
};

static void tell(int, siginfo_t* info, void* context) {
  char line[64];
  long code = -1;
#if defined(__x86_64__) && defined(REG_ERR)
  code = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR];
#else
  static_cast<void>(context);
#endif
  const int length = std::snprintf(line, sizeof line, "address %lx\nerror %ld\n",
                                   reinterpret_cast<unsigned long>(info->si_addr), code);
  if (write(1, line, static_cast<std::size_t>(length)) < 0) _exit(2);
  _exit(0);
}

__attribute__((noinline)) long read_field(const volatile Request* p) { return p->batch_size; }
__attribute__((noinline)) void write_field(volatile Request* p) { p->batch_size = 1; }

int main(int, char** argv) {
  if (std::strcmp(argv[1], "tell") == 0) {
    struct sigaction action = {};
    action.sa_sigaction = tell;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
  }
  Request* volatile request = nullptr;
  if (std::strcmp(argv[2], "write") == 0) {
    write_field(request);
    return 0;
  }
  return static_cast<int>(read_field(request));
}
