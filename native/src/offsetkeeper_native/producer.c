/* Rows of Arrow into Kafka, by the librdkafka that confluent-kafka has loaded.
 *
 * The caller is producer.py beside this file, through ctypes. The prototypes below are those that librdkafka's rdkafka.h
 * documents (2.6 to 2.16), each with its section there. One thread uses a producer at a time, and callbacks run in it.
 * librdkafka copies each row, so a batch may go as soon as a call is over.
 */
#include "native.h"

enum { /* enum rd_kafka_vtype_t, and other constants of rdkafka.h */
    V_END = 0,
    V_RKT = 2,
    V_PARTITION = 3,
    V_VALUE = 4,
    V_KEY = 5,
    V_MSGFLAGS = 7,
    V_TIMESTAMP = 8,
    V_HEADERS = 10,
    PRODUCER = 0, /* RD_KAFKA_PRODUCER */
    COPY = 2,     /* RD_KAFKA_MSG_F_COPY */
    FATAL = -150, /* RD_KAFKA_RESP_ERR__FATAL */
};

#define FUNCTIONS(F)                                                                                                   \
    /* "Configuration interface" */                                                                                   \
    F(void *, conf_new, (void))                                                                                        \
    F(void, conf_destroy, (void *))                                                                                    \
    F(int, conf_set, (void *, const char *, const char *, char *, size_t))                                             \
    F(void, conf_set_error_cb, (void *, void (*)(void *, int, const char *, void *)))                                  \
    F(void, conf_set_log_cb, (void *, void (*)(const void *, int, const char *, const char *)))                        \
    F(void, conf_set_dr_msg_cb, (void *, void (*)(void *, const message_t *, void *)))                                 \
    F(void, conf_set_opaque, (void *, void *))                                                                         \
    /* "Main handle", "Topic object" and "Memory" */                                                                  \
    F(void *, new, (int, void *, char *, size_t))                                                                      \
    F(void, destroy, (void *))                                                                                         \
    F(void *, topic_new, (void *, const char *, void *))                                                               \
    F(void, topic_destroy, (void *))                                                                                   \
    F(void *, mem_malloc, (void *, size_t))                                                                            \
    /* "Message headers" and "Producer API" */                                                                        \
    F(void *, headers_new, (size_t))                                                                                   \
    F(void, headers_destroy, (void *))                                                                                 \
    F(int, header_add, (void *, const char *, ssize_t, const void *, ssize_t))                                         \
    F(int, producev, (void *, ...))                                                                                    \
    /* "Topic+Partition list", "Consumer group metadata" and "Transactional producer API" */                          \
    F(void *, topic_partition_list_new, (int))                                                                         \
    F(void, topic_partition_list_destroy, (void *))                                                                    \
    F(topic_partition_t *, topic_partition_list_add, (void *, const char *, int32_t))                                  \
    F(void *, consumer_group_metadata_new, (const char *))                                                             \
    F(void, consumer_group_metadata_destroy, (void *))                                                                 \
    F(void *, send_offsets_to_transaction, (void *, const void *, const void *, int))

FUNCTIONS(DECLARE)

/* ---- What this file adds; producer.py knows these structures and numbers too ---- */
enum { MOST_TOLD = 20, TEXT = 512 };

typedef struct {
    int32_t code;
    char text[TEXT]; /* empty where it says no more than the code */
} told_t;

typedef struct { /* what was told since it was asked last: the first reports of the client, and the first failed messages */
    int32_t reports_count, failed_count;
    told_t reports[MOST_TOLD], failed[MOST_TOLD];
} news_t;

typedef struct {
    void *client;
    void **topics; /* handles */
    size_t topics_count;
    news_t news;
} producer_t;

/* ---- Callbacks ---- */
static void tell(told_t *told, int32_t *count, int code, const char *text) {
    if (*count == MOST_TOLD) return;
    told[*count].code = code;
    snprintf(told[*count].text, TEXT, "%s", text ? text : "");
    ++*count;
}

static void on_error(void *client, int code, const char *reason, void *opaque) {
    (void)client;
    producer_t *p = opaque;
    if (code != FATAL) tell(p->news.reports, &p->news.reports_count, code, reason); /* a fatal one is asked for */
}

static void on_delivery(void *client, const message_t *m, void *opaque) {
    (void)client;
    producer_t *p = opaque;
    if (m->err) tell(p->news.failed, &p->news.failed_count, m->err, NULL);
}

static void on_log(const void *client, int level, const char *facility, const char *text) {
    (void)client, (void)level, (void)facility, (void)text;
}

/* ---- Rows ---- */
typedef struct { /* of variable size; those of row `i` are at `i + from` */
    const uint8_t *valid, *data;
    const int32_t *ends;
    int64_t from;
} values_t;

typedef struct {
    values_t lists, keys, values;
} headers_t;

static values_t values_of(const struct ArrowArray *a, int64_t from) {
    return (values_t){
        .valid = a->buffers[0],
        .ends = a->buffers[1],
        .data = a->n_buffers > 2 ? a->buffers[2] : NULL,
        .from = from + a->offset,
    };
}

static headers_t headers_of(const struct ArrowArray *a, int64_t from) {
    const struct ArrowArray *pairs = a->children[0];
    return (headers_t){
        .lists = values_of(a, from),
        .keys = values_of(pairs->children[0], pairs->offset),
        .values = values_of(pairs->children[1], pairs->offset),
    };
}

static int is_valid(const values_t *v, int64_t row) {
    int64_t at = row + v->from;
    return !v->valid || (v->valid[at / 8] >> at % 8 & 1);
}

static const void *bytes_of(const values_t *v, int64_t row, size_t *size) { /* Returns NULL for null, and only then. */
    *size = 0;
    if (!is_valid(v, row)) return NULL;
    const int32_t *ends = v->ends + row + v->from;
    *size = (size_t)(ends[1] - ends[0]);
    return *size ? v->data + ends[0] : (const void *)"";
}

static const void *numbers_of(const struct ArrowArray *a, int64_t from, size_t size) { /* a column without nulls */
    return (const uint8_t *)a->buffers[1] + (size_t)(from + a->offset) * size;
}

static void *made_headers(const headers_t *h, int64_t row) { /* Returns NULL where there are none. */
    if (!is_valid(&h->lists, row)) return NULL;
    const int32_t *ends = h->lists.ends + row + h->lists.from;
    if (ends[0] == ends[1]) return NULL;
    void *headers = rk_headers_new((size_t)(ends[1] - ends[0]));
    for (int32_t i = ends[0]; headers && i < ends[1]; i++) {
        size_t name_size, size;
        const char *name = bytes_of(&h->keys, i, &name_size);
        const void *value = bytes_of(&h->values, i, &size);
        (void)rk_header_add(headers, name ? name : "", (ssize_t)name_size, value, (ssize_t)size);
    }
    return headers;
}

/* Hands rows over, from `*row` on, which then is the first one that was not taken: where the queue is full, or librdkafka
 * refuses it. Returns librdkafka's code. The columns are those of producer.py, without nulls but in key, value and
 * headers. */
EXPORT int ok_produce(producer_t *p, const struct ArrowArray *rows, void **topics, int64_t *row) {
    struct ArrowArray **columns = rows->children;
    const int32_t *topic = numbers_of(columns[0], rows->offset, sizeof *topic);
    const int32_t *partition = numbers_of(columns[1], rows->offset, sizeof *partition);
    const int64_t *timestamp = numbers_of(columns[2], rows->offset, sizeof *timestamp);
    values_t keys = values_of(columns[3], rows->offset), values = values_of(columns[4], rows->offset);
    headers_t all = headers_of(columns[5], rows->offset);
    for (int64_t i = *row; i < rows->length; i++) {
        size_t key_size, size;
        const void *key = bytes_of(&keys, i, &key_size), *value = bytes_of(&values, i, &size);
        void *headers = made_headers(&all, i);
        int failed = rk_producev(p->client, V_RKT, topics[topic[i]], V_PARTITION, partition[i], V_MSGFLAGS, COPY,
                                 V_TIMESTAMP, timestamp[i], V_KEY, key, key_size, V_VALUE, value, size, V_HEADERS,
                                 headers, V_END);
        if (failed) {
            if (headers) rk_headers_destroy(headers); /* only a message that was taken owns them */
            *row = i;
            return failed;
        }
    }
    *row = rows->length;
    return 0;
}

/* ---- Transactions ---- */
/* Sends an offset to the transaction, for a group: of the topic's partitions from 0 on, each with its text. Returns an
 * error of librdkafka's, or NULL; `*short_of` says whether memory is. */
EXPORT void *ok_send_offset(producer_t *p, const char *topic, int64_t offset, const char **texts, int count,
                            const char *group, int wait_ms, int *short_of) {
    void *list = rk_topic_partition_list_new(count), *metadata = rk_consumer_group_metadata_new(group), *error = NULL;
    *short_of = !list || !metadata;
    for (int i = 0; i < count && !*short_of; i++) {
        size_t size = strlen(texts[i]) + 1;
        topic_partition_t *one = rk_topic_partition_list_add(list, topic, i);
        void *copy = one ? rk_mem_malloc(p->client, size) : NULL; /* the list frees it */
        *short_of = !copy;
        if (!copy) break;
        one->offset = offset;
        one->metadata = memcpy(copy, texts[i], size);
        one->metadata_size = size; /* confluent-kafka sends the NUL too, and does not find the end without it */
    }
    if (!*short_of) error = rk_send_offsets_to_transaction(p->client, list, metadata, wait_ms);
    if (list) rk_topic_partition_list_destroy(list);
    if (metadata) rk_consumer_group_metadata_destroy(metadata);
    return error;
}

/* ---- From the beginning to the end ---- */
EXPORT const char *ok_load_producer(void *library) { /* Returns the name of a function that is not there, or NULL. */
    FUNCTIONS(LOAD)
    return NULL;
}

EXPORT void *ok_client(producer_t *p) { return p->client; }

EXPORT const news_t *ok_news(producer_t *p) { return &p->news; }

EXPORT void ok_forget_news(producer_t *p) { p->news.reports_count = p->news.failed_count = 0; }

EXPORT void *ok_topic(producer_t *p, const char *name, int *short_of) { /* Returns its handle, or NULL. */
    void **topics = realloc(p->topics, (p->topics_count + 1) * sizeof *topics);
    *short_of = !topics;
    if (!topics) return NULL;
    p->topics = topics;
    void *topic = rk_topic_new(p->client, name, NULL);
    if (topic) topics[p->topics_count++] = topic;
    return topic;
}

EXPORT void ok_close_producer(producer_t *p) {
    for (size_t i = 0; i < p->topics_count; i++) rk_topic_destroy(p->topics[i]);
    if (p->client) rk_destroy(p->client);
    free(p->topics);
    free(p);
}

/* Returns a producer, or NULL and why in `why`, which has room for `size` bytes. */
EXPORT producer_t *ok_open_producer(const char **names, const char **values, int count, char *why, size_t size) {
    producer_t *p = calloc(1, sizeof *p);
    void *conf = p ? rk_conf_new() : NULL;
    snprintf(why, size, "no memory");
    int failed = !conf;
    if (conf) {
        rk_conf_set_opaque(conf, p);
        rk_conf_set_error_cb(conf, on_error);
        rk_conf_set_log_cb(conf, on_log);
        rk_conf_set_dr_msg_cb(conf, on_delivery);
    }
    for (int i = 0; i < count && !failed; i++) failed = rk_conf_set(conf, names[i], values[i], why, size);
    if (!failed) p->client = rk_new(PRODUCER, conf, why, size); /* which then owns `conf` */
    if (!failed && p->client) return p;
    if (conf) rk_conf_destroy(conf);
    free(p);
    return NULL;
}
