"""Tries schedules of runs, faults and operators against what offsetkeeper promises: docs/proof.md says how far.

One process, no threads and no real time: the ledger, the delivery and the engines are the real ones, and what they ask
(a store, Kafka, Spark, outputs) are models that a schedule drives. `python -m offsetkeeper.testing.simulator` runs it.
"""
