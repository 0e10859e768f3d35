"""The demo: a real broker, a pipeline killed again and again, and a count of every record at the end."""
