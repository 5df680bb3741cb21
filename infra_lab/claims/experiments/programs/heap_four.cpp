// Reads the byte behind a block of four.
#include <cstdlib>

int main() {
  volatile char* block = static_cast<char*>(std::malloc(4));
  volatile int index = 4;
  return block[index];
}
