// Loses 100 blocks of 4096 bytes.
#include <cstdio>
#include <cstdlib>

int main() {
  for (int i = 0; i < 100; ++i) {
    volatile char* block = static_cast<char*>(std::malloc(4096));
    block[0] = 1;
  }
  std::puts("done");
  return 0;
}
