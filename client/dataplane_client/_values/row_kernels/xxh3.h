/* XXH3-64 of the public xxHash specification (seed 0, default secret), as the package xxhash computes it.
 *
 * Values up to 240 bytes have formulas of their own; longer ones are consumed in stripes of 64 bytes. Where the processor
 * allows it, a long value is copied while it is hashed: that takes little more than the copy, which waits for memory.
 * Little-endian machines only, like the wire. */

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <immintrin.h>
#endif

enum { STRIPE = 64, LANES = 8, STRIPES = 16, SHORT_VALUE = 240, SECRET = 192, PREFETCH = 4096 };

#define P32_1 0x9E3779B1U
#define P32_2 0x85EBCA77U
#define P32_3 0xC2B2AE3DU
#define P64_1 0x9E3779B185EBCA87ULL
#define P64_2 0xC2B2AE3D27D4EB4FULL
#define P64_3 0x165667B19E3779F9ULL
#define P64_4 0x85EBCA77C2B2AE63ULL
#define P64_5 0x27D4EB2F165667C5ULL

static const uint8_t secret[SECRET] __attribute__((aligned(64))) = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static uint64_t read64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint32_t read32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint64_t rotated(uint64_t value, int by)
{
    return value << by | value >> (64 - by);
}

__extension__ typedef unsigned __int128 wide;

static uint64_t folded_product(uint64_t a, uint64_t b)
{
    wide product = (wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t avalanche(uint64_t hash)
{
    hash ^= hash >> 37;
    hash *= 0x165667919E3779F9ULL;
    return hash ^ hash >> 32;
}

static uint64_t mix16(const uint8_t *at, const uint8_t *key)
{
    return folded_product(read64(at) ^ read64(key), read64(at + 8) ^ read64(key + 8));
}

static uint64_t hash_to_16(const uint8_t *at, int64_t size)
{
    uint64_t bytes = (uint64_t)size;
    if (size > 8) {
        uint64_t low = read64(at) ^ read64(secret + 24) ^ read64(secret + 32);
        uint64_t high = read64(at + size - 8) ^ read64(secret + 40) ^ read64(secret + 48);
        return avalanche(bytes + __builtin_bswap64(low) + high + folded_product(low, high));
    }
    if (size >= 4) {
        uint64_t both = read32(at + size - 4) + ((uint64_t)read32(at) << 32);
        uint64_t hash = both ^ read64(secret + 8) ^ read64(secret + 16);
        hash ^= rotated(hash, 49) ^ rotated(hash, 24);
        hash *= 0x9FB21C651E98DF25ULL;
        hash ^= (hash >> 35) + bytes;
        hash *= 0x9FB21C651E98DF25ULL;
        return hash ^ hash >> 28;
    }
    uint32_t first = at[0], middle = at[size >> 1], last = at[size - 1];
    uint64_t hash = (first << 16 | middle << 24 | last | (uint32_t)size << 8) ^ (read32(secret) ^ read32(secret + 4));
    hash ^= hash >> 33;
    hash *= P64_2;
    hash ^= hash >> 29;
    hash *= P64_3;
    return hash ^ hash >> 32;
}

static uint64_t hash_to_240(const uint8_t *at, int64_t size)
{
    uint64_t hash = (uint64_t)size * P64_1;
    if (size <= 128) {
        for (int64_t i = (size - 1) / 32; i >= 0; i--)
            hash += mix16(at + 16 * i, secret + 32 * i) + mix16(at + size - 16 * (i + 1), secret + 32 * i + 16);
        return avalanche(hash);
    }
    for (int64_t i = 0; i < 8; i++)
        hash += mix16(at + 16 * i, secret + 16 * i);
    hash = avalanche(hash);
    for (int64_t i = 8; i < size / 16; i++)
        hash += mix16(at + 16 * i, secret + 16 * (i - 8) + 3);
    return avalanche(hash + mix16(at + size - 16, secret + 136 - 17));
}

/* All whole stripes but the last, which begin a new block after every STRIPES. */
static void consume(uint64_t *lanes, const uint8_t *at, int64_t stripes)
{
    for (int64_t stripe = 0; stripe < stripes; stripe++) {
        const uint8_t *key = secret + 8 * (stripe % STRIPES);
        for (int i = 0; i < LANES; i++) {
            uint64_t data = read64(at + STRIPE * stripe + 8 * i), keyed = data ^ read64(key + 8 * i);
            lanes[i ^ 1] += data;
            lanes[i] += (keyed & 0xFFFFFFFF) * (keyed >> 32);
        }
        if (stripe % STRIPES == STRIPES - 1)
            for (int i = 0; i < LANES; i++)
                lanes[i] = (lanes[i] ^ lanes[i] >> 47 ^ read64(secret + SECRET - STRIPE + 8 * i)) * P32_1;
    }
}

#ifdef __SSE2__
/* As consume, and copy the bytes meanwhile, past the caches: all but those behind the last stripe but one, beginning at the
 * first place of `to` that is aligned. Returns how many bytes are there. to: 0 if nothing is to be copied. */
__attribute__((target("avx2"))) static int64_t consume_wide(uint64_t *lanes, const uint8_t *at, int64_t stripes, uint8_t *to)
{
    const int64_t head = -(intptr_t)to & 15;
    const __m256i *last = (const __m256i *)(secret + SECRET - STRIPE);
    const __m256i prime = _mm256_set1_epi64x(P32_1);
    __m256i held[2] = {_mm256_loadu_si256((__m256i *)lanes), _mm256_loadu_si256((__m256i *)lanes + 1)};
    if (to && stripes > 1)
        memcpy(to, at, (size_t)head);
    for (int64_t stripe = 0; stripe < stripes; stripe++, at += STRIPE) {
        const __m256i *key = (const __m256i *)(secret + 8 * (stripe % STRIPES));
        _mm_prefetch((const char *)at + PREFETCH, _MM_HINT_T0);
        for (int i = 0; i < 2; i++) {
            __m256i data = _mm256_loadu_si256((const __m256i *)at + i);
            __m256i keyed = _mm256_xor_si256(data, _mm256_loadu_si256(key + i));
            __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
            held[i] = _mm256_add_epi64(product, _mm256_add_epi64(held[i], _mm256_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2))));
        }
        if (to && stripe < stripes - 1)
            for (int i = 0; i < 4; i++)
                _mm_stream_si128((__m128i *)(to + head + STRIPE * stripe) + i, _mm_loadu_si128((const __m128i *)(at + head) + i));
        if (stripe % STRIPES == STRIPES - 1)
            for (int i = 0; i < 2; i++) {
                __m256i keyed = _mm256_xor_si256(held[i], _mm256_srli_epi64(held[i], 47));
                keyed = _mm256_xor_si256(keyed, _mm256_loadu_si256(last + i));
                __m256i high = _mm256_slli_epi64(_mm256_mul_epu32(_mm256_srli_epi64(keyed, 32), prime), 32);
                held[i] = _mm256_add_epi64(_mm256_mul_epu32(keyed, prime), high);
            }
    }
    for (int i = 0; i < 2; i++)
        _mm256_storeu_si256((__m256i *)lanes + i, held[i]);
    return to && stripes > 1 ? head + STRIPE * (stripes - 1) : 0;
}
#endif

/* The hash of a value of more than SHORT_VALUE bytes. to: 0, or where to copy it past the caches; *copied: how many of its
 * first bytes were. */
static uint64_t hash_long(const uint8_t *at, int64_t size, uint8_t *to, int64_t *copied)
{
    uint64_t lanes[LANES] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};
    int64_t stripes = (size - 1) / STRIPE;
    *copied = 0;
#ifdef __SSE2__
    if (__builtin_cpu_supports("avx2"))
        *copied = consume_wide(lanes, at, stripes, to);
    else
#endif
        consume(lanes, at, stripes);
    (void)to;
    for (int i = 0; i < LANES; i++) { /* the last stripe, which may overlap the one before */
        uint64_t data = read64(at + size - STRIPE + 8 * i), keyed = data ^ read64(secret + SECRET - STRIPE - 7 + 8 * i);
        lanes[i ^ 1] += data;
        lanes[i] += (keyed & 0xFFFFFFFF) * (keyed >> 32);
    }
    uint64_t hash = (uint64_t)size * P64_1;
    for (int i = 0; i < 4; i++)
        hash += folded_product(lanes[2 * i] ^ read64(secret + 11 + 16 * i), lanes[2 * i + 1] ^ read64(secret + 19 + 16 * i));
    return avalanche(hash);
}

static uint64_t hash_short(const uint8_t *at, int64_t size)
{
    return size > 16 ? hash_to_240(at, size) : hash_to_16(at, size);
}
