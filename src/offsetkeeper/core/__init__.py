"""The rules of a ledger and their data types, all pure; and the ledger that applies them through a store."""
