// two: two elements of a matrix, and their word in memory.
//
//     TwoT             two of T
//     TWO_FROM(word)   the elements of a word, the first in the low half
//     WORD_FROM(two)   the reverse
//
// Bits are only moved, so a word may also hold two elements of another 16-bit format.
//
// The includer includes lib/element.glsl, with a 16-bit format.

#if defined(ELEM_F16)
#define TwoT f16vec2
#define TWO_FROM(word) unpackFloat2x16(word)
#define WORD_FROM(two) packFloat2x16(two)
#else
#define TwoT bf16vec2
#define TWO_FROM(word) uintBitsToBFloat16EXT(unpack16(word))
#define WORD_FROM(two) pack32(bfloat16BitsToUintEXT(two))
#endif
