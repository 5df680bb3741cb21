// Writes between a vector's size and its capacity: memory that is allocated and not in use.
#include <cstdio>
#include <vector>

int main() {
  std::vector<int> values;
  values.reserve(100);
  values.resize(10);
  volatile std::size_t index = 50;
#ifdef USE_DATA
  values.data()[index] = 7;
#else
  values[index] = 7;
#endif
  std::puts("written");
  return 0;
}
