// Ends as asked: by a signal, or alive until somebody ends it.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

int main(int, char** argv) {
  if (std::strcmp(argv[1], "wait") == 0) {
    if (write(1, "ready\n", 6) < 0) return 2;
    for (;;) pause();
  }
  raise(std::atoi(argv[1]));
  return 0;
}
