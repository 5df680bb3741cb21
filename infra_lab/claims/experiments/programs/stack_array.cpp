// Writes one element of an array on the stack. Prints where x lies, as an index of a, and what x
// is afterwards. With -DX_FIRST x is declared before a, otherwise after it.
#include <cstdio>
#include <cstdlib>

__attribute__((noinline)) void write_element(int index) {
#ifdef X_FIRST
  int x = 42;
  int a[10];
#else
  int a[10];
  int x = 42;
#endif
  std::printf("x_index %ld\n", static_cast<long>(&x - &a[0]));
  a[index] = 7;
  std::printf("x %d\n", x);
}

int main(int, char** argv) {
  write_element(std::atoi(argv[1]));
  return 0;
}
