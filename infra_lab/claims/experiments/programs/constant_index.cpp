// Only ever compiled: does anybody warn of these two constants?
int sum() {
  int a[10];
  for (int i = 0; i < 10; ++i) a[i] = i;
  return a[10] + a[12];
}
int main() { return sum(); }
