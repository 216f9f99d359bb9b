// gemm_epilogue: C from the sums of products (values below has alpha, beta, the bias, the activation
// and the residual; lib/gemm_params.glsl has the formula), and loads and stores of C, R, X and S.
//
// The includer includes lib/gemm_out.glsl, lib/gemm_params.glsl and lib/formats.glsl.

#include "silu.glsl"
#include "activation.glsl"

// DEFINE_GET(get, FORMAT, vec4s, vec2s, floats, halves) makes `uvec4 get(at, WIDTH)`: the elements
// at..at+WIDTH-1 of a tensor, as they lie in memory. widen_words converts them to numbers.
// DEFINE_PUT makes `void put(at, words, WIDTH)`, which writes them. WIDTH is a constant: 1, 2
// or 4, and for put of 16-bit elements also 8. With a WIDTH of 4 or 8, at is a multiple of it.
#define DEFINE_GET(get, FORMAT, vec4s, vec2s, floats, halves)                            \
    uvec4 get(const uint at, const uint WIDTH) {                                         \
        if (FORMAT == FORMAT_F32) {                                                      \
            if (WIDTH == 4) {                                                            \
                return floatBitsToUint(vec4s[at >> 2]);                                  \
            }                                                                            \
            return floatBitsToUint(vec4(floats[at], floats[at + WIDTH - 1], 0.0, 0.0));  \
        }                                                                                \
        if (WIDTH == 4) {                                                                \
            return uvec4(vec2s[at >> 2], 0, 0);                                          \
        }                                                                                \
        return uvec4(uint(halves[at]) | uint(halves[at + WIDTH - 1]) << 16, 0, 0, 0);    \
    }

// Two functions, for a format that is an argument is no constant before functions are inlined: NVIDIA's
// compiler then left loops over strips rolled up and spilled all sums, 32 TFLOP/s instead of 210 (H200).
vec4 widen_words(const uvec4 words) {
    if (OUT_FORMAT == FORMAT_F32) {
        return uintBitsToFloat(words);
    }
    return vec4(widen_from(OUT_FORMAT, words.x), widen_from(OUT_FORMAT, words.y));
}

vec4 widen_bias(const uvec4 words) {
    if (BIAS_FORMAT == FORMAT_F32) {
        return uintBitsToFloat(words);
    }
    return vec4(widen_from(OUT_FORMAT, words.x), widen_from(OUT_FORMAT, words.y));
}

// narrow_words is the reverse of widen_words for WIDTH elements: it rounds.
uvec4 narrow_words(const vec4 x, const uint WIDTH) {
    if (OUT_FORMAT == FORMAT_F32) {
        return floatBitsToUint(x);
    }
    if (WIDTH == 1) {
        return uvec4(narrow_to(OUT_FORMAT, x.x), 0, 0, 0);
    }
    return uvec4(pack_to(OUT_FORMAT, x.x, x.y), WIDTH == 4 ? pack_to(OUT_FORMAT, x.z, x.w) : 0, 0, 0);
}

#define DEFINE_PUT(put, vec4s, vec2s, floats, halves)               \
    void put(const uint at, const uvec4 words, const uint WIDTH) {  \
        if (OUT_FORMAT == FORMAT_F32) {                             \
            if (WIDTH == 4) {                                       \
                vec4s[at >> 2] = uintBitsToFloat(words);            \
                return;                                             \
            }                                                       \
            floats[at] = uintBitsToFloat(words.x);                  \
            if (WIDTH == 2) {                                       \
                floats[at + 1] = uintBitsToFloat(words.y);          \
            }                                                       \
        } else if (WIDTH == 8) {                                    \
            vec4s[at >> 3] = uintBitsToFloat(words);                \
        } else if (WIDTH == 4) {                                    \
            vec2s[at >> 2] = words.xy;                              \
        } else {                                                    \
            halves[at] = uint16_t(words.x);                         \
            if (WIDTH == 2) {                                       \
                halves[at + 1] = uint16_t(words.x >> 16);           \
            }                                                       \
        }                                                           \
    }

DEFINE_GET(get_c, OUT_FORMAT, c4, c2, c1, c16)
DEFINE_PUT(put_c, c4, c2, c1, c16)
DEFINE_GET(get_r, OUT_FORMAT, r4, r2, r1, r16)
DEFINE_GET(get_x, OUT_FORMAT, x4, x2, x1, x16)
DEFINE_PUT(put_x, x4, x2, x1, x16)
DEFINE_GET(get_bias, BIAS_FORMAT, s4, s2, s1, s16)
DEFINE_PUT(put_s, s4, s2, s1, s16)

// The epilogue's inputs for some elements, as they lie in memory.
struct Extras {
    uvec4 c;
    uvec4 r;
    uvec4 x;
    uvec4 bias;
};

const Extras NO_EXTRAS = Extras(uvec4(0), uvec4(0), uvec4(0), uvec4(0));

// fetch loads what finish needs for the same elements.
Extras fetch(const uint batch, const uint row, const uint col, const uint WIDTH) {
    Extras e = NO_EXTRAS;
    if (READS_C) {
        e.c = get_c(ROW_AT(c, batch, row) + col, WIDTH);
    }
    if (RESIDUAL) {
        e.r = get_r(ROW_AT(r, batch, row) + col, WIDTH);
    }
    if (TIMES_SLOPE) {
        e.x = get_x(ROW_AT(x, batch, row) + col, WIDTH);
    }
    if (BIAS) {
        e.bias = get_bias(ROW_AT(s, batch, row) + col, WIDTH);
    }
    return e;
}

// The epilogue's outputs for some elements.
struct Values {
    vec4 c;
    vec4 x;
    vec4 s;
};

Values values(const vec4 sum, const Extras extras) {
    Values v = Values(scaled(sum), vec4(0.0), vec4(0.0));
    if (READS_C) {
        v.c += p.beta * widen_words(extras.c);
    }
    if (BIAS) {
        v.c += widen_bias(extras.bias);
    }
    if (KEEP_X) {
        v.x = v.c;
    }
    if (TIMES_SLOPE) {
        const vec4 y = widen_words(extras.x);
        v.c *= ACTIVATION == SILU ? dsilu(y) : activated(y).slope;
        if (KEEP_S) {
            v.s = ACTIVATION == SILU ? silu(y) : activated(y).value;
        }
    } else if (ACTIVATION == SILU) {
        v.c = silu(v.c);
    } else if (ACTIVATION != 0) {
        v.c = activated(v.c).value;
    }
    if (RESIDUAL) {
        v.c += widen_words(extras.r);
    }
    return v;
}

// The same, as it lies in memory.
struct Results {
    uvec4 c;
    uvec4 x;
    uvec4 s;
};

Results results(const vec4 sum, const Extras extras, const uint WIDTH) {
    const Values v = values(sum, extras);
    Results words = Results(narrow_words(v.c, WIDTH), uvec4(0), uvec4(0));
    if (KEEP_X) {
        words.x = narrow_words(v.x, WIDTH);
    }
    if (KEEP_S) {
        words.s = narrow_words(v.s, WIDTH);
    }
    return words;
}

// store writes the elements (row, col) to (row, col + WIDTH - 1). With a WIDTH of 2, element
// col of C is at an even place.
void store(const uint batch, const uint row, const uint col, const Results words, const uint WIDTH) {
    const uint c = ROW_AT(c, batch, row) + col;
    if (KEEP_X) {
        put_x(ROW_AT(x, batch, row) + col, words.x, WIDTH);
    }
    if (KEEP_S) {
        put_s(ROW_AT(s, batch, row) + col, words.s, WIDTH);
    }
    if (WIDTH == 2 && OUT_FORMAT != FORMAT_F32) {
        c32[c >> 1] = words.c.x;
    } else {
        put_c(c, words.c, WIDTH);
    }
}

// finish is both, for elements that nothing was fetched for.
void finish(const uint batch, const uint row, const uint col, const vec4 sum, const uint WIDTH) {
    store(batch, row, col, results(sum, fetch(batch, row, col, WIDTH), WIDTH), WIDTH);
}
