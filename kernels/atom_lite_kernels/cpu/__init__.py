"""CPU kernels in C++: plain C ABI over pointers, compiled on first use and loaded with ctypes."""
