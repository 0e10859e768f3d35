"""The command `offsetkeeper`: a thin layer over the library."""
