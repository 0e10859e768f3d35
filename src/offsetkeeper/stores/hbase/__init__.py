"""The store in HBase."""

from offsetkeeper.stores.hbase.store import HBaseStore

__all__ = ["HBaseStore"]
