"""What benchmarks share or start, and nobody runs by itself."""
