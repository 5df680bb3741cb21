// Use after return: the address of a local outlives it.
#include <cstdio>

int* kept;

__attribute__((noinline)) void keep() {
  int local[10] = {1, 2, 3};
  kept = local;
}

int main() {
  keep();
  std::printf("%d\n", kept[1]);
  return 0;
}
