"""Measurements of speed, start-up and accuracy; see docs/performance.md and docs/accuracy.md."""
