"""Benchmarks against what people would use otherwise; `python -m tools.bench`."""
