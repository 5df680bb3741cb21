// Decides by a number that was never set: no access is out of bounds.
#include <cstdio>
#include <cstdlib>

int main() {
  int* block = static_cast<int*>(std::malloc(4 * sizeof(int)));
  if (block[2] > 3) std::puts("large");
  std::free(block);
  return 0;
}
