"""The store in Redis, or a cluster of it."""

from offsetkeeper.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
