// Two small blocks; one byte is written behind the first, and both are freed.
// "size N": prints how much of a block of N bytes is usable. "write N I": writes byte I of it.
#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

int main(int, char** argv) {
  const std::size_t size = std::strtoul(argv[2], nullptr, 10);
  volatile unsigned char* first = static_cast<unsigned char*>(std::malloc(size));
  void* second = std::malloc(size);
  if (std::strcmp(argv[1], "size") == 0) {
    std::printf("usable %zu\n", malloc_usable_size(const_cast<unsigned char*>(first)));
    return 0;
  }
  first[std::strtoul(argv[3], nullptr, 10)] = 0xff;
  std::free(second);
  std::free(const_cast<unsigned char*>(first));
  std::puts("freed");
  return 0;
}
