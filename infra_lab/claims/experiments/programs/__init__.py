"""Sources of the C++ programs that experiments compile."""
