"""The command `offsetkeeper`: thin over the library."""
