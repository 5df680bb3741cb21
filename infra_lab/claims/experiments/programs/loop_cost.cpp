// The same two loops by operator[] or, with -DUSE_AT, by at(): a sum, which can be vectorized, and
// a gather by random indices, which waits for memory. Prints nanoseconds of the fastest of 7 runs.
#include <chrono>
#include <cstdio>
#include <numeric>
#include <vector>

#ifdef USE_AT
#define AT(v, i) (v).at(i)
#else
#define AT(v, i) (v)[i]
#endif

__attribute__((noinline)) int sum(const std::vector<int>& values, std::size_t count) {
  int total = 0;
  for (std::size_t i = 0; i < count; ++i) total += AT(values, i);
  return total;
}

__attribute__((noinline)) int gather(const std::vector<int>& values,
                                     const std::vector<unsigned>& order, std::size_t count) {
  int total = 0;
  for (std::size_t i = 0; i < count; ++i) total += AT(values, AT(order, i));
  return total;
}

template <typename Loop>
static long fastest(Loop loop) {
  long best = 1L << 62;
  volatile int kept = 0;
  for (int run = 0; run < 7; ++run) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; ++i) kept = kept + loop();
    const auto taken = std::chrono::steady_clock::now() - start;
    const long ns = std::chrono::duration_cast<std::chrono::nanoseconds>(taken).count();
    if (ns < best) best = ns;
  }
  return best;
}

int main() {
  const std::size_t small = 4096, large = 1 << 20;
  std::vector<int> values(large);
  std::iota(values.begin(), values.end(), 0);
  std::vector<unsigned> order(65536);
  unsigned state = 1;
  for (unsigned& place : order) {
    state = state * 1664525u + 1013904223u;
    place = (state >> 8) % large;
  }
  std::printf("sum %ld\n", fastest([&] { return sum(values, small); }));
  std::printf("gather %ld\n", fastest([&] { return gather(values, order, order.size()); }));
  return 0;
}
