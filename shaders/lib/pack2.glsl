// pack2: two floats, results of arithmetic, as 16-bit elements in one word, the first in the
// low half, rounded to nearest even.
//
// The includer includes lib/element.glsl first, with a 16-bit format.

uint pack2(const float low, const float high) {
#if defined(ELEM_BF16)
    return pack_bf16(low, high);
#else
    return pack_f16(low, high);
#endif
}
