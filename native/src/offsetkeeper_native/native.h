/* What reader.c and producer.c share: types that librdkafka's rdkafka.h documents, each with its section there, those of
 * "The Arrow C data interface", and how librdkafka's functions are found in the library that confluent-kafka has loaded.
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct { /* rd_kafka_message_t, section "Kafka messages" */
    int err;
    void *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *_private;
} message_t;

typedef struct { /* the beginning of rd_kafka_topic_partition_t, section "Topic+Partition list" */
    char *topic;
    int32_t partition;
    int64_t offset;
    void *metadata;
    size_t metadata_size;
} topic_partition_t;

/* For a table of FUNCTIONS: declares each, and finds each in `library`; else the function returns its name. */
#define DECLARE(type, name, arguments) static type(*rk_##name) arguments;
#define LOAD(type, name, arguments)                                                                                    \
    *(void **)&rk_##name = dlsym(library, "rd_kafka_" #name);                                                          \
    if (!rk_##name) return "rd_kafka_" #name;

/* ---- The Arrow C data interface ---- */
struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};
