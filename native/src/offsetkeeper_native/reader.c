/* Records of Kafka as Arrow, by the librdkafka that confluent-kafka has loaded.
 *
 * The caller is __init__.py beside this file, through ctypes: no Python is needed to build it, and no header of librdkafka.
 * The prototypes below are those that librdkafka's rdkafka.h documents (2.6 to 2.16), each with its section there. One
 * thread uses a reader at a time.
 * Whatever cannot be allocated ends a call with NO_MEMORY: nothing is half done then but the reader, which is to be closed.
 */
#include "native.h"

/* ---- librdkafka ---- */
enum { /* enum rd_kafka_resp_err_t and other constants of rdkafka.h */
    PARTITION_EOF = -191,
    LOG_TRUNCATION = -139,       /* RD_KAFKA_RESP_ERR__LOG_TRUNCATION */
    NO_ENTRY = -156,             /* RD_KAFKA_RESP_ERR__NOENT: a message without headers */
    CONSUMER = 1,                /* RD_KAFKA_CONSUMER */
    NO_CONSUMER_CLOSE = 8,       /* RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE: no group to leave, nothing to commit */
};

#define FUNCTIONS(F)                                                                                                   \
    /* "Configuration interface" */                                                                                   \
    F(void *, conf_new, (void))                                                                                        \
    F(void, conf_destroy, (void *))                                                                                    \
    F(int, conf_set, (void *, const char *, const char *, char *, size_t))                                             \
    F(void, conf_set_error_cb, (void *, void (*)(void *, int, const char *, void *)))                                  \
    F(void, conf_set_stats_cb, (void *, int (*)(void *, char *, size_t, void *)))                                      \
    F(void, conf_set_log_cb, (void *, void (*)(const void *, int, const char *, const char *)))                        \
    F(void, conf_set_opaque, (void *, void *))                                                                         \
    /* "Main handle" and "Errors" */                                                                                  \
    F(void *, new, (int, void *, char *, size_t))                                                                      \
    F(void, destroy_flags, (void *, int))                                                                              \
    F(const char *, err2str, (int))                                                                                    \
    F(char *, clusterid, (void *, int))                                                                                \
    F(void, mem_free, (void *, void *))                                                                                \
    /* "Topic+Partition list" */                                                                                      \
    F(void *, topic_partition_list_new, (int))                                                                         \
    F(void, topic_partition_list_destroy, (void *))                                                                    \
    F(topic_partition_t *, topic_partition_list_add, (void *, const char *, int32_t))                                  \
    /* "KafkaConsumer", "Pause and resume", "Queue API", "Queue consumer" */                                          \
    F(int, poll_set_consumer, (void *))                                                                                \
    F(void *, incremental_assign, (void *, const void *))                                                              \
    F(int, error_code, (const void *))                                                                                 \
    F(void, error_destroy, (void *))                                                                                   \
    F(int, pause_partitions, (void *, void *))                                                                         \
    F(int, resume_partitions, (void *, void *))                                                                        \
    F(void *, seek_partitions, (void *, void *, int))                                                                  \
    F(void *, queue_get_consumer, (void *))                                                                            \
    F(void, queue_destroy, (void *))                                                                                   \
    F(ssize_t, consume_batch_queue, (void *, int, message_t **, size_t))                                               \
    /* "Kafka messages", "Message headers" */                                                                         \
    F(void, message_destroy, (message_t *))                                                                            \
    F(const char *, message_errstr, (const message_t *))                                                               \
    F(int64_t, message_timestamp, (const message_t *, int *))                                                          \
    F(int32_t, message_leader_epoch, (const message_t *))                                                              \
    F(const char *, topic_name, (const void *))                                                                        \
    F(int, message_headers, (const message_t *, void **))                                                              \
    F(void *, headers_new, (size_t))                                                                                   \
    F(void, headers_destroy, (void *))                                                                                 \
    F(int, header_add, (void *, const char *, ssize_t, const void *, ssize_t))                                         \
    F(int, header_get_all, (const void *, size_t, const char **, const void **, size_t *))

FUNCTIONS(DECLARE)

/* ---- What this file adds; __init__.py knows these structures and numbers too ---- */
enum { OK, NO_MEMORY, BAD_TIMESTAMP, BROKEN };
enum { ELSEWHERE = -1, REPORT = -2 }; /* as the place of an event: of no partition that is read, or of the client */
enum { STEP = 512, FIRST_STEP = 32, MOST_EVENTS = 100000, TEXT = 1024, COLUMNS = 8, BASE = 64, MOST_USUAL = 1 << 20 };
enum { FIRST_CHUNK = 4096, CHUNK = 1 << 16, MOST_SPARE = 64 };

typedef struct { /* a range: who calls reads `position`, which is `end` where all is seen, and the bytes that wait; no
                  * record of the log that was planned has a leader epoch after `epoch` */
    int64_t position, end, held, epoch;
} place_t;

typedef struct { /* the records of `place` before the offset `until` are given before those of the next turn */
    int64_t place, until;
} turn_t;

typedef struct {
    int32_t code, place;
    int64_t offset;
    char *text; /* NULL where memory was short, or it says no more than the code */
} event_t;

typedef struct { /* the outcome of a call of ok_take; what it points to is good until the next one */
    int64_t rows;
    int64_t events_count;
    const event_t *events;
    int64_t done_count;
    const int32_t *done; /* places that were read to their end just now */
    int32_t bad_place;   /* of the record, where BAD_TIMESTAMP or BROKEN is returned */
    int64_t bad_offset, bad_ms;
    int64_t arrived; /* wanted records that came; those that are given may be others; one more if it has fetched on */
    int64_t held;    /* bytes that wait for their turn */
    int64_t turn;    /* the turn that is not over, or how many there are */
} taken_t;

typedef struct {
    uint8_t *data;
    int64_t size, capacity, usual; /* bytes */
} buffer_t;

typedef struct { /* of variable size, each value with its validity */
    buffer_t valid, offsets, data;
    int64_t length, nulls;
} column_t;

typedef struct {
    column_t key, value, topic, header_key, header_value, lists; /* `lists` has no data of its own */
    buffer_t partition, offset, timestamp, kind;
    int64_t rows, bytes; /* bytes: at least as many as Arrow counts */
} batch_t;

typedef struct { /* a record; where it waits, its key, its value and its headers follow it, each of those with its sizes */
    int64_t offset, time, whole;                  /* whole: bytes, of all that is kept of it */
    int32_t size, key_len, value_len, headers, kind; /* size: as a batch counts it; a length of -1: there is none */
} row_t;

typedef struct chunk { /* of records that wait */
    struct chunk *next;
    int64_t at, size, capacity; /* bytes: those before `at` were given */
    uint8_t data[];
} chunk_t;

typedef struct {
    char *topic;
    size_t topic_len;
    int32_t number;
    int32_t done;
    chunk_t *first, *last;
    int64_t waiting; /* records */
} partition_t;

typedef struct {
    void *client, *queue;
    int headers, raw_times;  /* raw_times: milliseconds are given as Kafka has them */
    partition_t *partitions; /* in the order of topic and number */
    place_t *places;         /* the caller's */
    int32_t count, last;     /* last: the one found last */
    void *last_topic;
    message_t *waiting[STEP]; /* taken from librdkafka, and not looked at yet */
    int64_t first, behind;
    event_t *events;
    int64_t events_count, events_capacity;
    int32_t *done;
    int64_t done_count;
    const turn_t *turns; /* the caller's */
    int64_t turn, turns_count, held;
    chunk_t *spare; /* of the size CHUNK: new memory costs more than a copy into old */
    int32_t spare_count;
    int64_t fetched; /* the next offsets to be fetched, added up, once they were told */
    int told, fetches; /* fetches: whether they have grown; what is fetched of aborted transactions is not given */
    batch_t batch;
} reader_t;

/* ---- Buffers ---- */
static int reserve(buffer_t *b, int64_t more) {
    if (b->size + more <= b->capacity) return OK;
    int64_t wanted = b->size + more, capacity = b->capacity * 2;
    if (!b->capacity && b->usual > wanted) capacity = b->usual;
    if (capacity < wanted) capacity = wanted;
    capacity = (capacity + 63) / 64 * 64;
    uint8_t *data = realloc(b->data, (size_t)capacity);
    if (!data) return NO_MEMORY;
    b->data = data;
    b->capacity = capacity;
    return OK;
}

static void put(buffer_t *b, const void *from, int64_t size) { /* into room that is reserved */
    if (size) memcpy(b->data + b->size, from, (size_t)size);
    b->size += size;
}

static void clear(buffer_t *b) {
    free(b->data);
    *b = (buffer_t){.usual = b->usual};
}

static int reserve_values(column_t *c, int64_t more) {
    int64_t bitmap = (c->length + more + 7) / 8 - c->valid.size;
    if (reserve(&c->valid, bitmap > 0 ? bitmap : 0) || reserve(&c->offsets, 4 * (more + 1)) || reserve(&c->data, 1))
        return NO_MEMORY;
    if (!c->offsets.size) put(&c->offsets, &(int32_t){0}, 4);
    return OK;
}

static void end_value(column_t *c, int valid, int64_t end) { /* of a value that ends at `end` */
    if (c->length % 8 == 0) put(&c->valid, &(uint8_t){0}, 1);
    if (valid)
        c->valid.data[c->length / 8] |= (uint8_t)(1 << c->length % 8);
    else
        c->nulls++;
    c->length++;
    put(&c->offsets, &(int32_t){(int32_t)end}, 4);
}

static int add_value(column_t *c, const void *from, size_t size) { /* its place is reserved, its bytes are not */
    if (reserve(&c->data, (int64_t)size)) return NO_MEMORY;
    put(&c->data, from, (int64_t)size);
    end_value(c, from != NULL, c->data.size);
    return OK;
}

static void clear_column(column_t *c) {
    clear(&c->valid);
    clear(&c->offsets);
    clear(&c->data);
    c->length = c->nulls = 0;
}

static void clear_batch(batch_t *b) {
    column_t *columns[] = {&b->key, &b->value, &b->topic, &b->header_key, &b->header_value, &b->lists};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) clear_column(columns[i]);
    buffer_t *fixed[] = {&b->partition, &b->offset, &b->timestamp, &b->kind};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) clear(fixed[i]);
    b->rows = b->bytes = 0;
}

/* ---- Text as Java reads it ---- */
static int64_t sequence(const uint8_t *s, size_t left, int *good) {
    /* Returns how many bytes belong together, and whether they are a character: what is not becomes one U+FFFD.
     * As Unicode recommends, but that Java takes half a surrogate pair, three bytes, for one wrong character. */
    *good = 0;
    int length = s[0] < 0x80 ? 1 : s[0] < 0xC2 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : s[0] < 0xF5 ? 4 : 0;
    if (!length) return 1;
    uint8_t low = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80, high = s[0] == 0xF4 ? 0x8F : 0xBF;
    for (int i = 1; i < length; i++, low = 0x80, high = 0xBF)
        if ((size_t)i >= left || s[i] < low || s[i] > high) return i;
    *good = !(s[0] == 0xED && s[1] >= 0xA0);
    return length;
}

EXPORT int64_t ok_text(const uint8_t *from, size_t size, uint8_t *to) { /* `to` has room for 3 bytes for each of `from` */
    int64_t written = 0;
    for (size_t at = 0; at < size;) {
        int good;
        int64_t length = sequence(from + at, size - at, &good);
        memcpy(to + written, good ? from + at : (const uint8_t *)"\xEF\xBF\xBD", (size_t)(good ? length : 3));
        written += good ? length : 3;
        at += (size_t)length;
    }
    return written;
}

/* ---- Headers ----
 * rd_kafka_header_get_all gives a name without its size, so that one with a NUL in it would be cut. In all releases that
 * this was tried with, the size lies two words before the name. ok_load looks whether it does; else names end at a NUL. */
static int sizes_known;

static size_t name_size(const char *name) {
    size_t size;
    if (!sizes_known) return strlen(name);
    memcpy(&size, name - 2 * sizeof(size_t), sizeof size);
    return size;
}

static void find_sizes(void) {
    void *headers = rk_headers_new(4);
    const char *names[] = {"", "a\0bc", "x\0", "long-name-of-a-header"}, *values[] = {"v", NULL, "", "value"};
    const size_t sizes[] = {0, 4, 2, 21};
    int found = 1;
    if (!headers) return;
    for (size_t i = 0; i < 4 && found; i++) {
        const char *name;
        const void *value;
        size_t size;
        if (rk_header_add(headers, names[i], (ssize_t)sizes[i], values[i], values[i] ? (ssize_t)strlen(values[i]) : 0) ||
            rk_header_get_all(headers, i, &name, &value, &size))
            found = 0;
        else if (value && (const char *)value != name + sizes[i] + 1) /* in one piece of memory with what lies before */
            found = 0;
    }
    for (size_t i = 0; i < 4 && found; i++) {
        const char *name;
        const void *value;
        size_t size;
        sizes_known = 1;
        found = !rk_header_get_all(headers, i, &name, &value, &size) && name_size(name) == sizes[i];
    }
    sizes_known = found;
    rk_headers_destroy(headers);
}

static int header_sizes(const message_t *m, void **headers, int64_t *count, int64_t *bytes) {
    const char *name;
    const void *value;
    size_t size;
    int failed = rk_message_headers(m, headers);
    if (failed) *headers = NULL;
    if (failed && failed != NO_ENTRY) return BROKEN;
    while (*headers && !rk_header_get_all(*headers, (size_t)*count, &name, &value, &size)) {
        *bytes += (int64_t)(3 * name_size(name) + size);
        ++*count;
    }
    return OK;
}

static int add_header(batch_t *b, const void *name, size_t length, const void *value, size_t size) {
    column_t *keys = &b->header_key;
    if (reserve_values(keys, 1) || reserve_values(&b->header_value, 1)) return NO_MEMORY;
    if (reserve(&keys->data, (int64_t)(3 * length))) return NO_MEMORY;
    keys->data.size += ok_text(name, length, keys->data.data + keys->data.size);
    end_value(keys, 1, keys->data.size);
    return add_value(&b->header_value, value, size);
}

/* ---- Batches ---- */
static int reserve_rows(reader_t *r, int64_t more) {
    batch_t *b = &r->batch;
    return reserve_values(&b->key, more) || reserve_values(&b->value, more) || reserve_values(&b->topic, more) ||
                   reserve_values(&b->lists, more) || reserve_values(&b->header_key, 0) ||
                   reserve_values(&b->header_value, 0) || reserve(&b->partition, 4 * more) ||
                   reserve(&b->offset, 8 * more) || reserve(&b->timestamp, 8 * more) || reserve(&b->kind, 4 * more)
               ? NO_MEMORY
               : OK;
}

static int describe(reader_t *r, const message_t *m, const partition_t *p, row_t *row, void **headers, taken_t *t) {
    int64_t count = 0, of_headers = 0;
    int kind = 0;
    t->bad_place = (int32_t)(p - r->partitions); /* in case that it is */
    t->bad_offset = m->offset;
    *row = (row_t){.offset = m->offset, .key_len = -1, .value_len = -1};
    if (r->headers && header_sizes(m, headers, &count, &of_headers)) return BROKEN;
    int64_t milliseconds = rk_message_timestamp(m, &kind);
    if (!kind) milliseconds = -1; /* there is none: librdkafka says 0, the Java client, and so Spark, -1 */
    if (__builtin_mul_overflow(milliseconds, r->raw_times ? (int64_t)1 : (int64_t)1000, &row->time)) {
        t->bad_ms = milliseconds;
        return BAD_TIMESTAMP;
    }
    row->kind = kind - 1; /* librdkafka counts 0 none, 1 create time, 2 append time; the Java client, and so Spark, one less */
    int64_t size = (int64_t)(m->key_len + m->len + p->topic_len) + of_headers + 9 * count + 44;
    if (size > INT32_MAX) return NO_MEMORY;
    row->size = (int32_t)size;
    row->headers = (int32_t)count;
    if (m->key) row->key_len = (int32_t)m->key_len;
    if (m->payload) row->value_len = (int32_t)m->len;
    return OK;
}

static int fits(const batch_t *b, const row_t *row, int64_t most_rows, int64_t most_bytes) { /* the first one always does */
    return b->rows < most_rows && (!b->rows || BASE + b->bytes + row->size <= most_bytes);
}

static int add_row(batch_t *b, const partition_t *p, const row_t *row, const void *key, const void *value) {
    if (add_value(&b->key, key, key ? (size_t)row->key_len : 0) ||
        add_value(&b->value, value, value ? (size_t)row->value_len : 0) || add_value(&b->topic, p->topic, p->topic_len))
        return NO_MEMORY;
    put(&b->partition, &p->number, 4);
    put(&b->offset, &row->offset, 8);
    put(&b->timestamp, &row->time, 8);
    put(&b->kind, &row->kind, 4);
    b->rows++;
    b->bytes += row->size;
    return OK;
}

static int add_message(reader_t *r, const partition_t *p, const message_t *m, const row_t *row, void *headers) {
    batch_t *b = &r->batch;
    if (add_row(b, p, row, m->key, m->payload)) return NO_MEMORY;
    for (int64_t i = 0; i < row->headers; i++) {
        const char *name;
        const void *value;
        size_t size;
        if (rk_header_get_all(headers, (size_t)i, &name, &value, &size)) return BROKEN;
        if (add_header(b, name, name_size(name), value, size)) return NO_MEMORY;
    }
    if (r->headers) end_value(&b->lists, row->headers > 0, b->header_key.length);
    return OK;
}

/* ---- Records that wait for their turn ---- */
static uint8_t *copy(uint8_t *to, const void *from, int64_t size) { /* Returns the place behind it. */
    if (size > 0) memcpy(to, from, (size_t)size);
    return to + (size > 0 ? size : 0);
}

static chunk_t *chunk_for(reader_t *r, partition_t *p, int64_t room) {
    chunk_t *c = p->last;
    if (c && c->capacity - c->size >= room) return c;
    int64_t capacity = c ? CHUNK : FIRST_CHUNK;
    if (capacity < room) capacity = room;
    if (capacity == CHUNK && r->spare) {
        c = r->spare;
        r->spare = c->next;
        r->spare_count--;
    } else
        c = realloc(NULL, sizeof *c + (size_t)capacity);
    if (!c) return NULL;
    *c = (chunk_t){.capacity = capacity};
    if (p->last)
        p->last->next = c;
    else
        p->first = c;
    return p->last = c;
}

static void drop_chunk(reader_t *r, chunk_t *c) {
    if (c->capacity != CHUNK || r->spare_count >= MOST_SPARE) {
        free(c);
        return;
    }
    c->next = r->spare;
    r->spare = c;
    r->spare_count++;
}

static void free_chunks(chunk_t *c) {
    for (chunk_t *next; c; c = next) {
        next = c->next;
        free(c);
    }
}

/* Copies a message: to keep it would keep all of the broker's answer that it came in. */
static int hold(reader_t *r, int32_t at, const message_t *m, row_t *row, void *headers) {
    partition_t *p = &r->partitions[at];
    int64_t room = (int64_t)sizeof *row + row->size + 16LL * row->headers + 8; /* size counts names and values, not their sizes */
    chunk_t *c = chunk_for(r, p, room);
    if (!c) return NO_MEMORY;
    uint8_t *start = c->data + c->size, *to = start + sizeof *row;
    to = copy(to, m->key, row->key_len);
    to = copy(to, m->payload, row->value_len);
    for (int64_t i = 0; i < row->headers; i++) {
        const char *name;
        const void *value;
        size_t size;
        if (rk_header_get_all(headers, (size_t)i, &name, &value, &size)) return BROKEN;
        int64_t sizes[] = {(int64_t)name_size(name), value ? (int64_t)size : -1};
        to = copy(to, sizes, sizeof sizes);
        to = copy(to, name, sizes[0]);
        to = copy(to, value, sizes[1]);
    }
    row->whole = (to - start + 7) / 8 * 8;
    memcpy(start, row, sizeof *row);
    c->size += row->whole;
    p->waiting++;
    r->places[at].held += row->whole;
    r->held += row->whole;
    return OK;
}

static int add_held(reader_t *r, const partition_t *p, const row_t *row, const uint8_t *from) {
    batch_t *b = &r->batch;
    const uint8_t *key = from, *value = key + (row->key_len > 0 ? row->key_len : 0);
    if (add_row(b, p, row, row->key_len < 0 ? NULL : key, row->value_len < 0 ? NULL : value)) return NO_MEMORY;
    from = value + (row->value_len > 0 ? row->value_len : 0);
    for (int64_t i = 0; i < row->headers; i++) {
        int64_t sizes[2];
        memcpy(sizes, from, sizeof sizes);
        const uint8_t *name = from + sizeof sizes, *of_header = name + sizes[0];
        if (add_header(b, name, (size_t)sizes[0], sizes[1] < 0 ? NULL : of_header, sizes[1] < 0 ? 0 : (size_t)sizes[1]))
            return NO_MEMORY;
        from = of_header + (sizes[1] < 0 ? 0 : sizes[1]);
    }
    if (r->headers) end_value(&b->lists, row->headers > 0, b->header_key.length);
    return OK;
}

/* Adds what waits of a partition before the offset `until`, or sets `full` where not all of that fits. */
static int give(reader_t *r, const turn_t *turn, int64_t most_rows, int64_t most_bytes, int *full) {
    partition_t *p = &r->partitions[turn->place];
    batch_t *b = &r->batch;
    if (p->first && reserve_rows(r, p->waiting < most_rows - b->rows ? p->waiting : most_rows - b->rows)) return NO_MEMORY;
    while (p->first) {
        chunk_t *c = p->first;
        row_t row;
        memcpy(&row, c->data + c->at, sizeof row);
        if (row.offset >= turn->until) return OK;
        if (!fits(b, &row, most_rows, most_bytes)) {
            *full = 1;
            return OK;
        }
        if (add_held(r, p, &row, c->data + c->at + sizeof row)) return NO_MEMORY;
        c->at += row.whole;
        p->waiting--;
        r->places[turn->place].held -= row.whole;
        r->held -= row.whole;
        if (c->at < c->size) continue;
        p->first = c->next;
        if (!p->first) p->last = NULL;
        drop_chunk(r, c);
    }
    return OK;
}

/* Gives what is held, turn by turn, up to the first turn whose records have not all come. */
static int go_on(reader_t *r, int64_t most_rows, int64_t most_bytes, int *full) {
    for (; r->turn < r->turns_count; r->turn++) {
        const turn_t *turn = &r->turns[r->turn];
        int failed = give(r, turn, most_rows, most_bytes, full);
        if (failed || *full) return failed;
        if (r->places[turn->place].position < turn->until) return OK;
    }
    return OK;
}

typedef struct { /* what an array owns */
    const void *buffers[3];
    struct ArrowArray *children[COLUMNS], storage[COLUMNS];
} owned_t;

static void release(struct ArrowArray *a) {
    owned_t *owned = a->private_data;
    for (int64_t i = 0; i < a->n_children; i++)
        if (owned->storage[i].release) owned->storage[i].release(&owned->storage[i]);
    for (int i = 0; i < 3; i++) free((void *)owned->buffers[i]);
    free(owned);
    a->release = NULL;
}

static owned_t *own(struct ArrowArray *a, int64_t length, int64_t nulls, int64_t buffers, int64_t children) {
    owned_t *owned = calloc(1, sizeof *owned);
    if (!owned) return NULL;
    for (int i = 0; i < COLUMNS; i++) owned->children[i] = &owned->storage[i];
    *a = (struct ArrowArray){.length = length, .null_count = nulls, .n_buffers = buffers, .n_children = children};
    a->buffers = owned->buffers;
    a->children = children ? owned->children : NULL;
    a->release = release;
    a->private_data = owned;
    return owned;
}

static void *hand_over(buffer_t *b) {
    void *data = b->data;
    b->usual = b->size < MOST_USUAL ? b->size : MOST_USUAL;
    *b = (buffer_t){.usual = b->usual};
    return data;
}

static int export_column(struct ArrowArray *a, column_t *c, int buffers) {
    owned_t *owned = own(a, c->length, c->nulls, buffers, buffers == 2 ? 1 : 0);
    if (!owned) return NO_MEMORY;
    if (c->nulls) owned->buffers[0] = hand_over(&c->valid);
    owned->buffers[1] = hand_over(&c->offsets);
    if (buffers == 3) owned->buffers[2] = hand_over(&c->data);
    clear_column(c);
    return OK;
}

static int export_fixed(struct ArrowArray *a, buffer_t *b, int64_t length) {
    owned_t *owned = own(a, length, 0, 2, 0);
    if (!owned) return NO_MEMORY;
    owned->buffers[1] = hand_over(b);
    return OK;
}

static int export_headers(struct ArrowArray *a, batch_t *b) {
    int64_t pairs = b->header_key.length;
    if (export_column(a, &b->lists, 2)) return NO_MEMORY;
    struct ArrowArray *pair = a->children[0];
    if (!own(pair, pairs, 0, 1, 2)) return NO_MEMORY;
    return export_column(pair->children[0], &b->header_key, 3) || export_column(pair->children[1], &b->header_value, 3)
               ? NO_MEMORY
               : OK;
}

static int export_batch(reader_t *r, struct ArrowArray *out) {
    batch_t *b = &r->batch;
    int64_t rows = b->rows;
    if (!own(out, rows, 0, 1, r->headers ? 8 : 7)) return NO_MEMORY;
    struct ArrowArray **to = out->children;
    int failed = export_column(to[0], &b->key, 3) || export_column(to[1], &b->value, 3) ||
                 export_column(to[2], &b->topic, 3) || export_fixed(to[3], &b->partition, rows) ||
                 export_fixed(to[4], &b->offset, rows) || export_fixed(to[5], &b->timestamp, rows) ||
                 export_fixed(to[6], &b->kind, rows) || (r->headers && export_headers(to[7], b));
    if (failed) out->release(out);
    clear_batch(b);
    return failed ? NO_MEMORY : OK;
}

EXPORT void ok_release(struct ArrowArray *a) { /* for a batch that nobody has taken over */
    if (a->release) a->release(a);
}

/* ---- Events ---- */
static int add_event(reader_t *r, int code, int32_t place, int64_t offset, const char *text) {
    if (r->events_count == r->events_capacity) {
        int64_t capacity = r->events_capacity ? 2 * r->events_capacity : 16;
        event_t *events = realloc(r->events, (size_t)capacity * sizeof *events);
        if (!events) return NO_MEMORY;
        r->events = events;
        r->events_capacity = capacity;
    }
    char *copy = text && code != PARTITION_EOF ? strndup(text, TEXT) : NULL;
    r->events[r->events_count++] = (event_t){.code = code, .place = place, .offset = offset, .text = copy};
    return OK;
}

static int add_later(reader_t *r, int32_t at, const message_t *m) {
    char text[64];
    snprintf(text, sizeof text, "leader epoch %d, and %d was planned", (int)rk_message_leader_epoch(m),
             (int)r->places[at].epoch);
    return add_event(r, LOG_TRUNCATION, at, m->offset, text);
}

static void forget_events(reader_t *r) {
    for (int64_t i = 0; i < r->events_count; i++) free(r->events[i].text);
    r->events_count = r->done_count = 0;
}

/* librdkafka calls it in the thread that takes messages; a report more or less does not matter. */
static void on_error(void *client, int code, const char *reason, void *opaque) {
    (void)client;
    reader_t *r = opaque;
    if (r->events_count < MOST_EVENTS) (void)add_event(r, code, REPORT, 0, reason);
}

static int on_stats(void *client, char *json, size_t size, void *opaque) { /* in the same thread */
    (void)client, (void)size;
    static const char name[] = "\"next_offset\":";
    reader_t *r = opaque;
    int64_t fetched = 0;
    for (const char *at = json; (at = strstr(at, name));) {
        at += sizeof name - 1;
        fetched += strtoll(at, NULL, 10);
    }
    r->fetches |= r->told && fetched > r->fetched;
    r->fetched = fetched;
    r->told = 1;
    return 0;
}

static void on_log(const void *client, int level, const char *facility, const char *text) {
    (void)client, (void)level, (void)facility, (void)text;
}

/* ---- Taking ---- */
static int32_t find(reader_t *r, const message_t *m) {
    if (!m->rkt) return ELSEWHERE;
    if (m->rkt == r->last_topic && r->last >= 0 && r->partitions[r->last].number == m->partition) return r->last;
    const char *topic = rk_topic_name(m->rkt);
    int32_t low = 0, high = r->count - 1;
    while (low <= high) {
        int32_t middle = low + (high - low) / 2;
        partition_t *p = &r->partitions[middle];
        int order = strcmp(topic, p->topic);
        if (!order) order = m->partition < p->number ? -1 : m->partition > p->number;
        if (!order) {
            r->last_topic = m->rkt;
            return r->last = middle;
        }
        if (order < 0)
            high = middle - 1;
        else
            low = middle + 1;
    }
    return ELSEWHERE;
}

static void move(reader_t *r, int32_t at, int64_t seen) { /* of what is before `seen`, nothing more comes */
    place_t *place = &r->places[at];
    if (r->partitions[at].done) return;
    if (seen > place->end) seen = place->end;
    if (seen > place->position) place->position = seen;
    if (place->position < place->end) return;
    r->partitions[at].done = 1;
    r->done[r->done_count++] = at;
}

typedef struct { /* how much one call may give and take, and what it has taken */
    int64_t rows, bytes, seen, came;
    int full;
} limits_t;

static int look_at(reader_t *r, const message_t *m, limits_t *l, taken_t *t) {
    int32_t at = find(r, m);
    if (m->err) {
        if (m->err == PARTITION_EOF && at >= 0) move(r, at, m->offset);
        return add_event(r, m->err, at, m->offset, m->err == PARTITION_EOF ? NULL : rk_message_errstr(m));
    }
    if (at < 0 || r->partitions[at].done) return OK;
    if (m->offset >= r->places[at].position && m->offset < r->places[at].end) {
        partition_t *p = &r->partitions[at];
        void *headers = NULL;
        row_t row;
        if (rk_message_leader_epoch(m) > r->places[at].epoch) return add_later(r, at, m);
        int failed = describe(r, m, p, &row, &headers, t);
        if (failed) return failed;
        const turn_t *turn = r->turn < r->turns_count ? &r->turns[r->turn] : NULL;
        if (turn && turn->place == at && !p->first && m->offset < turn->until) {
            if (!fits(&r->batch, &row, l->rows, l->bytes)) {
                l->full = 1;
                return OK;
            }
            failed = add_message(r, p, m, &row, headers);
        } else
            failed = hold(r, at, m, &row, headers);
        if (failed) return failed;
        l->came += row.size;
        t->arrived++;
    }
    move(r, at, m->offset + 1);
    return OK;
}

static int look_at_all(reader_t *r, limits_t *l, taken_t *t) {
    int failed = reserve_rows(r, r->behind - r->first);
    while (!failed && r->first < r->behind) {
        message_t *message = r->waiting[r->first];
        failed = look_at(r, message, l, t);
        if (failed || l->full) break;
        rk_message_destroy(message);
        r->first++;
        l->seen++;
        const turn_t *turn = r->turn < r->turns_count ? &r->turns[r->turn] : NULL;
        if (!turn || r->places[turn->place].position < turn->until) continue;
        failed = go_on(r, l->rows, l->bytes, &l->full);
        if (failed || l->full) break;
        failed = reserve_rows(r, r->behind - r->first);
    }
    return failed;
}

EXPORT int ok_take(reader_t *r, int wait_ms, int64_t most_rows, int64_t most_bytes, struct ArrowArray *out, taken_t *t) {
    if (most_bytes > INT32_MAX) most_bytes = INT32_MAX; /* offsets of Arrow's are 32 bits wide */
    limits_t l = {.rows = most_rows, .bytes = most_bytes};
    forget_events(r);
    *out = (struct ArrowArray){0};
    *t = (taken_t){0};
    int failed = reserve_rows(r, 0);
    if (!failed) failed = go_on(r, most_rows, most_bytes, &l.full);
    while (!failed && !l.full) {
        failed = look_at_all(r, &l, t);
        if (failed || l.full || r->batch.rows >= most_rows || l.seen >= most_rows || l.came >= most_bytes) break;
        if (r->turn == r->turns_count) break; /* who calls knows the turns that follow */
        /* One is waited for. Then what is there is taken in steps: more may arrive meanwhile, without end where they are
         * large. No more are taken than are likely to fit. */
        int64_t step = !l.seen ? 1 : l.seen < FIRST_STEP ? FIRST_STEP : STEP;
        if (l.came && step > (most_bytes - l.came) * t->arrived / l.came + 1)
            step = (most_bytes - l.came) * t->arrived / l.came + 1;
        if (step > most_rows - l.seen) step = most_rows - l.seen;
        int wait = l.seen || r->batch.rows ? 0 : wait_ms;
        ssize_t came = rk_consume_batch_queue(r->queue, wait, r->waiting, (size_t)step);
        if (came <= 0) break;
        r->first = 0;
        r->behind = came;
    }
    t->arrived += r->fetches;
    r->fetches = 0;
    t->rows = r->batch.rows;
    t->held = r->held;
    t->turn = r->turn;
    if (!failed && r->batch.rows) failed = export_batch(r, out);
    t->events_count = r->events_count;
    t->events = r->events;
    t->done_count = r->done_count;
    t->done = r->done;
    return failed;
}

/* ---- From the beginning to the end ---- */
EXPORT const char *ok_load(void *library) { /* Returns the name of a function that is not there, or NULL. */
    FUNCTIONS(LOAD)
    find_sizes();
    return NULL;
}

EXPORT int ok_whole_names(void) { return sizes_known; }

EXPORT const char *ok_describe(int code) { return rk_err2str(code); }

EXPORT void ok_cluster(reader_t *r, int wait_ms, char *id, size_t size) { /* empty where it is not known in time */
    char *found = rk_clusterid(r->client, wait_ms);
    snprintf(id, size, "%s", found ? found : "");
    if (found) rk_mem_free(r->client, found);
}

EXPORT void ok_close(reader_t *r) {
    for (; r->first < r->behind; r->first++) rk_message_destroy(r->waiting[r->first]);
    if (r->queue) rk_queue_destroy(r->queue);
    if (r->client) rk_destroy_flags(r->client, NO_CONSUMER_CLOSE);
    forget_events(r);
    clear_batch(&r->batch);
    for (int32_t i = 0; r->partitions && i < r->count; i++) {
        free_chunks(r->partitions[i].first);
        free(r->partitions[i].topic);
    }
    free_chunks(r->spare);
    free(r->partitions);
    free(r->events);
    free(r->done);
    free(r);
}

/* Returns a reader, or NULL and why in `why`, which has room for `size` bytes. */
EXPORT reader_t *ok_open(const char **names, const char **values, int count, int headers, int raw_times, char *why,
                         size_t size) {
    reader_t *r = calloc(1, sizeof *r);
    void *conf = r ? rk_conf_new() : NULL;
    snprintf(why, size, "no memory");
    if (!conf) {
        free(r);
        return NULL;
    }
    r->headers = headers;
    r->raw_times = raw_times;
    r->last = ELSEWHERE;
    rk_conf_set_opaque(conf, r);
    rk_conf_set_error_cb(conf, on_error);
    rk_conf_set_stats_cb(conf, on_stats);
    rk_conf_set_log_cb(conf, on_log);
    for (int i = 0; i < count; i++)
        if (rk_conf_set(conf, names[i], values[i], why, size)) {
            rk_conf_destroy(conf);
            free(r);
            return NULL;
        }
    r->client = rk_new(CONSUMER, conf, why, size);
    if (!r->client) {
        rk_conf_destroy(conf);
        free(r);
        return NULL;
    }
    int failed = rk_poll_set_consumer(r->client); /* from here on `conf` is the client's */
    r->queue = failed ? NULL : rk_queue_get_consumer(r->client);
    if (r->queue) return r;
    snprintf(why, size, "%s", failed ? rk_err2str(failed) : "there is no queue of messages");
    ok_close(r);
    return NULL;
}

/* Says what is to be read: `places` are those of the partitions, which come in the order of topic and number, each once.
 * Returns librdkafka's code, or INT_MIN where memory is short; as all below. */
EXPORT int ok_assign(reader_t *r, const char **topics, const int32_t *numbers, place_t *places, int32_t count) {
    r->partitions = calloc((size_t)count + 1, sizeof *r->partitions);
    r->done = calloc((size_t)count + 1, sizeof *r->done);
    if (!r->partitions || !r->done) return INT_MIN;
    for (int32_t i = 0; i < count; i++) {
        r->partitions[i] = (partition_t){.topic = strdup(topics[i]), .topic_len = strlen(topics[i]), .number = numbers[i]};
        r->count = i + 1;
        if (!r->partitions[i].topic) return INT_MIN;
    }
    r->places = places;
    return 0;
}

/* Says whose turns come next. The turns before are over, and these stay the caller's. */
EXPORT void ok_turns(reader_t *r, const turn_t *turns, int64_t count) {
    r->turns = turns;
    r->turn = 0;
    r->turns_count = count;
}

enum { BEGIN, PAUSE, RESUME };

static int fetch(reader_t *r, int what, void *list) {
    if (what == PAUSE) return rk_pause_partitions(r->client, list);
    int failed = what == RESUME ? rk_resume_partitions(r->client, list) : 0;
    if (failed) return failed;
    /* A broker's thread that has nothing to fetch sleeps for up to a second, and only a seek wakes it: it does no more. */
    void *error = what == RESUME ? rk_seek_partitions(r->client, list, 0) : rk_incremental_assign(r->client, list);
    int code = error && what == BEGIN ? rk_error_code(error) : 0;
    if (error) rk_error_destroy(error);
    return code;
}

/* Begins to fetch these partitions, or fetches no more of them, or goes on at the next offset wanted. */
EXPORT int ok_fetch(reader_t *r, int what, const int32_t *indexes, int32_t count) {
    void *list = rk_topic_partition_list_new(count);
    int failed = list ? 0 : INT_MIN;
    for (int32_t i = 0; i < count && !failed; i++) {
        partition_t *p = &r->partitions[indexes[i]];
        topic_partition_t *from = rk_topic_partition_list_add(list, p->topic, p->number);
        if (!from)
            failed = INT_MIN;
        else
            from->offset = r->places[indexes[i]].position;
    }
    if (!failed) failed = fetch(r, what, list);
    if (list) rk_topic_partition_list_destroy(list);
    return failed;
}
