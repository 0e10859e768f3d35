"""What operators ask of a group, and do with it."""
