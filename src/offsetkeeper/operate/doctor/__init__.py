"""Finds problems of a set-up: facts, rules that judge them, and the code that collects them."""
