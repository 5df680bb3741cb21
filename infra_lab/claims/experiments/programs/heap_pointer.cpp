// One element behind a block from new[]: no array of known bound is involved. The block behind it
// keeps the write away from what the allocator needs.
#include <cstdlib>
#include <unistd.h>

int main(int, char** argv) {
  int* block = new int[10]();
  int* neighbour = new int[10]();
  volatile int index = std::atoi(argv[1]);
  block[index] = 7;
  _exit(neighbour[0]);
}
