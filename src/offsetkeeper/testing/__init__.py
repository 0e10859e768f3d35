"""Real servers and suites to test against, for this project and for authors of stores. Linux and macOS."""
