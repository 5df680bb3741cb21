// Opens a file that is not there, as a program that cannot find its weights does.
#include <cstdio>

int main() {
  std::FILE* file = std::fopen("no-such-weights.bin", "r");
  return file == nullptr ? 1 : 0;
}
