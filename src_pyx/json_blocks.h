/* Runs of plain text inside a JSON string, 64 bytes at a time, for json_string.pyx.
 *
 * A block of 64 bytes becomes four bit masks: which bytes end a run (quote, backslash, control character, anything that
 * is no ASCII), and which are letters, digits, spaces. The weight of a run is then a matter of counting bits, and an
 * escape of one letter, which real text has every few dozen bytes, is taken without leaving the block.
 *
 * Two readers make the masks: AVX2 where the processor has it, asked once at import, and 64-bit arithmetic everywhere
 * else. Both are exact and the tests run both. Loads stay within [p, end): the last 63 bytes are left to the caller.
 */

#ifndef IOP_JSON_BLOCKS_H
#define IOP_JSON_BLOCKS_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define SCAN_HAS_AVX2 1
#include <immintrin.h>
#else
#define SCAN_HAS_AVX2 0
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "json_blocks.h reads bytes as little-endian words"
#endif

/* Weights of ASCII characters by kind, in 1/64 tokens; whatever is none of the first three is a mark. */
enum { LETTER_UNITS = 19, DIGIT_UNITS = 70, SPACE_UNITS = 6, MARK_UNITS = 46 };

enum { SCAN_BLOCK = 64 };

/* What a backslash and a letter weigh together beyond what the two bytes would weigh as text; 0 where the byte is no
 * escape of one letter. Filled by json_string.pyx. */
static int16_t ESCAPE_CHANGE[256];
static uint8_t IS_ESCAPE[256];

typedef struct {
    uint64_t special, letters, digits, spaces;
} scan_masks;

/* Find, in eight bytes that are below 0x80, those from `low` to `high`; their top bits are set. */
static inline uint64_t scan_between(uint64_t bytes, uint8_t low, uint8_t high)
{
    const uint64_t each = 0x0101010101010101u;
    return (bytes + each * (uint64_t)(0x80 - low)) & ~(bytes + each * (uint64_t)(0x7f - high));
}

static inline void scan_read_words(const uint8_t *p, scan_masks *masks)
{
    const uint64_t each = 0x0101010101010101u, tops = 0x8080808080808080u, gather = 0x0002040810204081u;
    scan_masks found = {0, 0, 0, 0};
    for (int at = 0; at < SCAN_BLOCK; at += 8) {
        uint64_t bytes, low, plain, letters, digits, spaces;
        memcpy(&bytes, p + at, 8);
        low = bytes & ~tops;
        spaces = scan_between(low, 32, 32) & ~bytes & tops;
        digits = scan_between(low, '0', '9') & ~bytes & tops;
        letters = scan_between(low | each * 0x20, 'a', 'z') & ~bytes & tops;
        plain = scan_between(low, 32, 127) & ~scan_between(low, '"', '"') & ~scan_between(low, '\\', '\\') & ~bytes;
        found.special |= ((((~plain & tops)) * gather) >> 56) << at;
        found.letters |= ((letters * gather) >> 56) << at;
        found.digits |= ((digits * gather) >> 56) << at;
        found.spaces |= ((spaces * gather) >> 56) << at;
    }
    *masks = found;
}

/* Take text from p on: return the first byte that is neither plain nor a one-letter escape (with `stops`: nor plain), or
 * where fewer than 64 bytes are left, and add the weight of what was taken. */
#define SCAN_RUN(NAME, READ, ATTRIBUTES)                                                                              \
    ATTRIBUTES static const uint8_t *NAME(const uint8_t *p, const uint8_t *end, int stops, uint64_t *units)           \
    {                                                                                                                 \
        int64_t weight = 0;                                                                                           \
        int is_open = 1;                                                                                              \
        while (is_open && end - p >= SCAN_BLOCK) {                                                                    \
            scan_masks masks;                                                                                         \
            uint64_t special, taken = ~(uint64_t)0;                                                                   \
            int size = SCAN_BLOCK;                                                                                    \
            READ(p, &masks);                                                                                          \
            special = masks.special;                                                                                  \
            while (special) {                                                                                         \
                int at = __builtin_ctzll(special);                                                                    \
                if (stops || p[at] != '\\' || at == SCAN_BLOCK - 1 || !IS_ESCAPE[p[at + 1]]) {                        \
                    /* A backslash in the last place begins the next block. */                                        \
                    is_open = !stops && at == SCAN_BLOCK - 1 && p[at] == '\\';                                        \
                    taken = ((uint64_t)1 << at) - 1;                                                                  \
                    size = at;                                                                                        \
                    break;                                                                                            \
                }                                                                                                     \
                weight += ESCAPE_CHANGE[p[at + 1]];                                                                   \
                special &= ~((uint64_t)3 << at);                                                                      \
            }                                                                                                         \
            weight += MARK_UNITS * size;                                                                              \
            weight += (LETTER_UNITS - MARK_UNITS) * __builtin_popcountll(masks.letters & taken);                      \
            weight += (DIGIT_UNITS - MARK_UNITS) * __builtin_popcountll(masks.digits & taken);                        \
            weight += (SPACE_UNITS - MARK_UNITS) * __builtin_popcountll(masks.spaces & taken);                        \
            p += size;                                                                                                \
        }                                                                                                             \
        *units += (uint64_t)weight;                                                                                   \
        return p;                                                                                                     \
    }

SCAN_RUN(scan_run_words, scan_read_words, )

#if SCAN_HAS_AVX2

#define SCAN_AVX2 __attribute__((target("avx2,bmi,popcnt")))

SCAN_AVX2 static inline void scan_read_avx2(const uint8_t *p, scan_masks *masks)
{
    scan_masks found = {0, 0, 0, 0};
    for (int at = 0; at < SCAN_BLOCK; at += 32) {
        const __m256i bytes = _mm256_loadu_si256((const __m256i *)(p + at));
        /* Signed: bytes from 0x80 on are below 32 too. */
        __m256i special = _mm256_cmpgt_epi8(_mm256_set1_epi8(32), bytes);
        const __m256i letters = _mm256_sub_epi8(_mm256_or_si256(bytes, _mm256_set1_epi8(32)), _mm256_set1_epi8('a'));
        const __m256i digits = _mm256_sub_epi8(bytes, _mm256_set1_epi8('0'));
        special = _mm256_or_si256(special, _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('"')));
        special = _mm256_or_si256(special, _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('\\')));
#define SCAN_MASK(VECTOR) ((uint64_t)(uint32_t)_mm256_movemask_epi8(VECTOR) << at)
        found.special |= SCAN_MASK(special);
        found.letters |= SCAN_MASK(_mm256_cmpeq_epi8(_mm256_min_epu8(letters, _mm256_set1_epi8(25)), letters));
        found.digits |= SCAN_MASK(_mm256_cmpeq_epi8(_mm256_min_epu8(digits, _mm256_set1_epi8(9)), digits));
        found.spaces |= SCAN_MASK(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(' ')));
#undef SCAN_MASK
    }
    *masks = found;
}

SCAN_RUN(scan_run_avx2, scan_read_avx2, SCAN_AVX2)

static inline int scan_can_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt");
}

#else

#define scan_run_avx2 scan_run_words

static inline int scan_can_avx2(void)
{
    return 0;
}

#endif

#endif
