"""The ways to run a pipeline: what is asked, in which order, of ledger, Kafka, reader and sink."""
