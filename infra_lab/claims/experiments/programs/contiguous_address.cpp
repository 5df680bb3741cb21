// Where a contiguous KV cache keeps each token: by the published formula, and with the position.
#include <cstdio>
#include <set>

int main() {
  const long requests = 4, max_seq = 64, kv_size = 256;
  std::set<long> published, right;
  for (long request = 0; request < requests; ++request)
    for (long token = 0; token < max_seq; ++token) {
      published.insert(request * max_seq * kv_size);
      right.insert(request * max_seq * kv_size + token * kv_size);
    }
  std::printf("published %zu\nright %zu\n", published.size(), right.size());
  return 0;
}
