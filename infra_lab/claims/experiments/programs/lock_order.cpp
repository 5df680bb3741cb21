// Two locks in opposite orders, one thread after the other: it cannot hang here, and could.
#include <cstdio>
#include <mutex>
#include <thread>

std::mutex first, second;

int main() {
  std::thread([] {
    std::lock_guard<std::mutex> a(first);
    std::lock_guard<std::mutex> b(second);
  }).join();
  std::thread([] {
    std::lock_guard<std::mutex> b(second);
    std::lock_guard<std::mutex> a(first);
  }).join();
  std::puts("done");
  return 0;
}
