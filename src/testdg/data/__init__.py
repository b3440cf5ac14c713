"""Data: corruptions, benchmarks, streams of batches."""
