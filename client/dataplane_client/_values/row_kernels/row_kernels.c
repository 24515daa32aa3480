/* Rows of bytes from anywhere to anywhere, each with a pattern filled in behind it, split over threads by bytes.
 *
 * Law: the caller has checked every bound; no two rows' targets overlap, and no target overlaps a source. Nothing is
 * allocated or kept between calls: threads are started for one call and joined before it returns (about 30 us), so a
 * process may fork at any other time, and a thread that cannot be started only makes the call slower.
 *
 * The bytes to write (rows and fills, in order) form one stream that threads take in pieces of PIECE bytes. A piece may
 * begin and end anywhere, so one huge row is shared like many small ones, and a thread that is late takes fewer pieces.
 * Pieces are taken in ascending order: each thread walks the table of rows once, forward.
 *
 * What is larger than the last cache is written past the caches where the processor can: the lines need not be read
 * before they are written. Smaller batches are written through the caches, where their reader finds them; past the
 * caches they took twice as long.
 *
 * A call may also hash each row (xxh3.h) while it copies it. A hash goes through its row from the first byte to the
 * last, so a thread then takes the rows that begin in its piece, and one huge row is not shared.
 */

#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "xxh3.h"

enum { PATTERN = 16, BLOCK = 64, PIECE = 256 * 1024, AHEAD = 1024, MOST_THREADS = 64, VERSION = 2 };

/* Bytes from which on a call writes past the caches. */
static const int64_t LARGE = 24 << 20;

/* Rows up to (not including) end_row that no earlier copy has. Laid out as Python's struct "QQq16s". */
struct copy {
    uint64_t target;
    uint64_t source;
    int64_t end_row;
    uint8_t pattern[PATTERN];
};

struct job {
    const struct copy *copies;
    const int64_t *target_starts;
    const int64_t *source_starts;
    const int64_t *sizes;
    const int64_t *fills;
    int64_t total;
    uint64_t *hashes; /* of the rows, or 0 */
    int past_caches;
    void (*move)(uint8_t *, const uint8_t *, int64_t);
    void (*repeat)(uint8_t *, int64_t, const uint8_t *);
    atomic_int_least64_t next; /* the first byte of the stream that no thread has taken */
};

/* Where a thread stands: row begins at byte begin of the stream and belongs to copy. */
struct cursor {
    int64_t row;
    int64_t begin;
    const struct copy *copy;
};

/* Not one memcpy: for rows of these sizes C libraries choose string instructions, which took a quarter longer on
 * processors that claim to be quick at them. Blocks of known size become plain vector moves. */
static void move(uint8_t *target, const uint8_t *source, int64_t size)
{
    for (; size >= BLOCK; size -= BLOCK, target += BLOCK, source += BLOCK)
        memcpy(target, source, BLOCK);
    memcpy(target, source, (size_t)size);
}

static void repeat(uint8_t *target, int64_t size, const uint8_t *pattern)
{
    for (; size >= PATTERN; size -= PATTERN, target += PATTERN)
        memcpy(target, pattern, PATTERN);
    memcpy(target, pattern, (size_t)size);
}

/* Bytes before the first place that is aligned. */
static int64_t unaligned(const uint8_t *target, int64_t size)
{
    int64_t head = -(intptr_t)target & (PATTERN - 1);
    return head < size ? head : size;
}

#ifdef __SSE2__
/* The same two, past the caches; the caller fences. */
static void stream_move(uint8_t *target, const uint8_t *source, int64_t size)
{
    int64_t head = unaligned(target, size);
    memcpy(target, source, (size_t)head);
    target += head, source += head, size -= head;
    for (; size >= BLOCK; size -= BLOCK, target += BLOCK, source += BLOCK) {
        _mm_prefetch((const char *)source + AHEAD, _MM_HINT_T0); /* the processor's own stops at the end of a page */
        for (int i = 0; i < BLOCK; i += PATTERN)
            _mm_stream_si128((__m128i *)(target + i), _mm_loadu_si128((const __m128i *)(source + i)));
    }
    memcpy(target, source, (size_t)size);
}

static void stream_repeat(uint8_t *target, int64_t size, const uint8_t *pattern)
{
    __m128i block = _mm_loadu_si128((const __m128i *)pattern);
    for (; size >= PATTERN; size -= PATTERN, target += PATTERN)
        _mm_stream_si128((__m128i *)target, block);
    memcpy(target, pattern, (size_t)size);
}
#endif

static void rotate(uint8_t *rotated, const uint8_t *pattern, int64_t by)
{
    for (int i = 0; i < PATTERN; i++)
        rotated[i] = pattern[(by + i) % PATTERN];
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Write bytes [from, to) of one row and its fill; from and to count from the row's first byte. */
static void write_part(const struct job *job, const struct cursor *at, int64_t from, int64_t to)
{
    uint8_t *target = (uint8_t *)(uintptr_t)at->copy->target + job->target_starts[at->row];
    const uint8_t *source = (const uint8_t *)(uintptr_t)at->copy->source + job->source_starts[at->row];
    int64_t size = job->sizes[at->row];
    if (from < size) {
        int64_t bytes = least(size, to) - from;
        job->move(target + from, source + from, bytes);
        from += bytes;
    }
    if (from < to) {
        int64_t head = job->repeat == repeat ? 0 : unaligned(target + from, to - from);
        uint8_t rotated[PATTERN];
        rotate(rotated, at->copy->pattern, (from - size) % PATTERN);
        memcpy(target + from, rotated, (size_t)head);
        from += head;
        rotate(rotated, at->copy->pattern, (from - size) % PATTERN);
        job->repeat(target + from, to - from, rotated);
    }
}

/* Nothing is copied: the rows are hashed where they are. */
static void keep(uint8_t *target, const uint8_t *source, int64_t size)
{
    (void)target, (void)source, (void)size;
}

/* Write the row at the cursor and its fill, and hash its bytes. */
static void write_hashed(const struct job *job, const struct cursor *at)
{
    uint8_t *target = (uint8_t *)(uintptr_t)at->copy->target + job->target_starts[at->row];
    const uint8_t *source = (const uint8_t *)(uintptr_t)at->copy->source + job->source_starts[at->row];
    int64_t size = job->sizes[at->row];
    int64_t copied = 0;
    if (size > SHORT_VALUE)
        job->hashes[at->row] = hash_long(source, size, job->past_caches ? target : 0, &copied);
    else if (size > 0)
        job->hashes[at->row] = hash_short(source, size);
    job->move(target + copied, source + copied, size - copied);
    write_part(job, at, size, size + job->fills[at->row]);
}

/* Write the rows that begin in the part of the stream from byte first to byte last (not included). */
static void write_rows(const struct job *job, struct cursor *at, int64_t first, int64_t last)
{
    while (at->begin < last) {
        int64_t extent = job->sizes[at->row] + job->fills[at->row];
        while (at->row >= at->copy->end_row)
            at->copy++;
        if (at->begin >= first)
            write_hashed(job, at);
        at->begin += extent;
        at->row++;
    }
}

/* Write the part of the stream from byte first to byte last (not included), moving the cursor forward. */
static void write_piece(const struct job *job, struct cursor *at, int64_t first, int64_t last)
{
    while (first < last) {
        int64_t extent = job->sizes[at->row] + job->fills[at->row];
        if (first >= at->begin + extent) {
            at->begin += extent;
            at->row++;
            continue;
        }
        while (at->row >= at->copy->end_row)
            at->copy++;
        int64_t end = least(last, at->begin + extent);
        write_part(job, at, first - at->begin, end - at->begin);
        first = end;
    }
}

static void *take_pieces(void *argument)
{
    struct job *job = argument;
    struct cursor at = {0, 0, job->copies};
    for (;;) {
        int64_t first = atomic_fetch_add(&job->next, PIECE);
        if (first >= job->total)
            break;
        int64_t last = least(job->total, first + PIECE);
        if (job->hashes)
            write_rows(job, &at, first, last);
        else
            write_piece(job, &at, first, last);
    }
#ifdef __SSE2__
    _mm_sfence();
#endif
    return 0;
}

/* How many threads were started, fewer than asked for if the system refuses one. They take no signals: handlers belong
 * to the process's own threads. */
static int start_threads(pthread_t *threads, int64_t wanted, struct job *job)
{
    sigset_t all, before;
    int started = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (started < wanted && pthread_create(&threads[started], 0, take_pieces, job) == 0)
        started++;
    pthread_sigmask(SIG_SETMASK, &before, 0);
    return started;
}

int32_t row_kernels_version(void)
{
    return VERSION;
}

/* Writes all rows and fills, total bytes together. table holds the target starts of all rows, then their source starts,
 * sizes and fills. Returns the number of threads that took part, the calling one included; fewer than asked for if the
 * system had no more, which changes nothing in the result. hashes: 0, or a place for the hash of each row, which stays as
 * it is for a row without bytes. only_hash: nothing is written to the targets, and there are no fills. */
int32_t row_kernels_copy(const struct copy *copies, const int64_t *table, int64_t rows, int64_t total, int32_t threads,
                         uint64_t *hashes, int32_t only_hash)
{
    struct job job = {copies, table, table + rows, table + 2 * rows, table + 3 * rows, total, hashes, 0, move, repeat, 0};
#ifdef __SSE2__
    if (total >= LARGE)
        job.past_caches = 1, job.move = stream_move, job.repeat = stream_repeat;
#endif
    if (only_hash)
        job.past_caches = 0, job.move = keep;
    pthread_t others[MOST_THREADS];
    int started = start_threads(others, least(threads, MOST_THREADS) - 1, &job);
    take_pieces(&job);
    for (int i = 0; i < started; i++)
        pthread_join(others[i], 0);
    return started + 1;
}
