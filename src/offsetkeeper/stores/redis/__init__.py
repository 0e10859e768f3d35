"""The store in Redis or a Redis cluster."""

from offsetkeeper.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
