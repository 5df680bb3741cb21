// Reads ever further behind a small block, and writes down each offset before reading it.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

int main() {
  volatile char* block = static_cast<char*>(std::malloc(100));
  char line[32];
  for (long offset = 100; offset < (64L << 20); offset += 512) {
    const int length = std::snprintf(line, sizeof line, "%ld\n", offset);
    if (write(1, line, static_cast<std::size_t>(length)) < 0) return 2;
    static_cast<void>(block[offset]);
  }
  return 0;
}
