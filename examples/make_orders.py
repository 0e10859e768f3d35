"""Make the topics of the examples, and produce thirty orders: two are broken."""

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its library hides them

BROKERS, ORDERS = "localhost:9092", "orders"
ITEMS = ("tea", "milk", "sugar")


def main() -> None:
    """Make the topics that do not exist yet; then produce."""
    wanted = [NewTopic(ORDERS, 2), NewTopic(f"{ORDERS}.priced", 1), NewTopic(f"{ORDERS}.bad", 1)]
    admin = AdminClient({"bootstrap.servers": BROKERS})
    for made in admin.create_topics(wanted).values():
        try:
            made.result()
        except KafkaException as error:
            print(error)
    producer = Producer({"bootstrap.servers": BROKERS})
    for number in range(30):
        order = f'{{"id": {number}, "item": "{ITEMS[number % 3]}", "count": {1 + number % 4}}}'
        producer.produce(ORDERS, order if number % 15 else "broken", key=str(number), partition=number % 2)
    producer.flush()


if __name__ == "__main__":
    main()
