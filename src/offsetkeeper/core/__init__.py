"""The rules of a ledger and what they are about: pure, and the ledger that applies them through a store."""
