"""The ways to run a pipeline: the order in which ledger, Kafka, reader and sink are used."""
