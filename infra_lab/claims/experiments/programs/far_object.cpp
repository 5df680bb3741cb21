// An index so far out that it lands in another live array, computed from where the two lie.
#include <cstdio>

int main() {
  int a[10] = {};
  int b[10] = {};
  volatile long distance = &b[0] - &a[0];
  a[distance] = 7;
  std::printf("b[0] %d\n", b[0]);
  return 0;
}
