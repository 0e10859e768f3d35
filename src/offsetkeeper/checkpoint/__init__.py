"""Spark's checkpoints of streaming queries: what is written in them."""
