// The same write through std::array, by operator[] or, with -DUSE_AT, by at().
#include <array>
#include <cstdio>
#include <cstdlib>

int main(int, char** argv) {
  std::array<int, 10> a{};
  const std::size_t index = static_cast<std::size_t>(std::atoi(argv[1]));
#ifdef USE_AT
  a.at(index) = 7;
#else
  a[index] = 7;
#endif
  std::printf("%d\n", a[0]);
  return 0;
}
