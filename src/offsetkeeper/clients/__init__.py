"""Clients of servers, from a URL: their connections wait for a limited time, and fail with errors of offsetkeeper."""
