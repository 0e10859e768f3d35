"""The store in ZooKeeper."""

from offsetkeeper.stores.zookeeper.store import ZooKeeperStore

__all__ = ["ZooKeeperStore"]
