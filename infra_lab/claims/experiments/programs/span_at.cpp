// Only ever compiled: std::span::at is C++26.
#include <span>

int main() {
  int a[10] = {};
  std::span<int> view(a);
  return view.at(3);
}
