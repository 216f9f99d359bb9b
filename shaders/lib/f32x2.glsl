// f32x2: float32 as the sum of two float16, for products on matrices of 16-bit elements.
//
//     x = (hi + lo) * 2^(e - TOP)
//
// where 2^e <= max|x| < 2^(e+1) over the elements that share the exponent e: scaled, the
// largest lie in [2^14, 2^15), below float16's 65504.
//
// hi is x rounded to 11 bits, lo is the rest rounded to 11 bits. Together they have 23 of the
// 24 bits of x, counting lo's sign. The last bit of a float16 is never below 2^-24, so the error
// of lo can reach 2^-25, which is 2^-39 of the largest element. Elements below 2^-16 of the
// largest have this absolute error instead of the relative one.
//
// Scaling is exact. If all elements are below 2^-97, they are scaled as if the largest were
// 2^-97. Their absolute error is then 2^-136, less than the cost of flushing subnormals.

const uint TOP = 14;
const uint FLOAT_BIAS = 127;   // exponent bits of 1.0
const uint MIN_EXPONENT = 30;  // exponent bits of 2^-97; fold_values in lib/fwd_f32x2.glsl stays a normal number

// Eight consecutive elements.
struct Elems8 {
    vec4 first;
    vec4 second;
};

// The parts of eight elements, as rows of float16 hold them.
struct Parts8 {
    uvec4 hi;
    uvec4 lo;
};

float largest(const Elems8 x) {
    const vec4 y = max(abs(x.first), abs(x.second));
    return max(max(y.x, y.y), max(y.z, y.w));
}

// keep_if returns x, or zeros. It selects: after a branch that invocations take independently,
// without maximal reconvergence, it is open which of them meet in a subgroup operation.
Elems8 keep_if(const bool kept, const Elems8 x) {
    return Elems8(mix(vec4(0.0), x.first, bvec4(kept)), mix(vec4(0.0), x.second, bvec4(kept)));
}

// exponent_of returns e + FLOAT_BIAS for elements whose largest magnitude has these bits.
uint exponent_of(const uint bits) { return max(bits >> 23, MIN_EXPONENT); }

// scale_of returns 2^(TOP - e) for exponent = e + FLOAT_BIAS.
float scale_of(const uint exponent) {
    return uintBitsToFloat((TOP + 2 * FLOAT_BIAS - exponent) << 23);
}

// round_to_hi returns x rounded to 11 bits, in integer arithmetic. A compiler may replace a
// float that was converted to float16 and back by the original (Mesa 26.1 does), and then lo
// is 0; and Vulkan leaves open how a conversion to float16 rounds.
float round_to_hi(const float x) {
    return uintBitsToFloat(floatBitsToUint(x) + 0x1000u & 0xffffe000u);
}

vec4 round_to_hi(const vec4 x) {
    return uintBitsToFloat(floatBitsToUint(x) + 0x1000u & 0xffffe000u);
}

uvec4 pack8(const vec4 a, const vec4 b) {
    const f16vec4 x = f16vec4(a);
    const f16vec4 y = f16vec4(b);
    return uvec4(packFloat2x16(x.xy), packFloat2x16(x.zw), packFloat2x16(y.xy), packFloat2x16(y.zw));
}

// split returns the parts of x * scale.
Parts8 split(const Elems8 x, const float scale) {
    const vec4 a = x.first * scale;
    const vec4 b = x.second * scale;
    const vec4 a_hi = round_to_hi(a);
    const vec4 b_hi = round_to_hi(b);
    return Parts8(pack8(a_hi, b_hi), pack8(a - a_hi, b - b_hi));
}

// READ8(at, Name, name) binds a tensor twice, as `vec4 name4[]` and as `float name1[]`, and makes
// `Elems8 load_name(uint i)`, its elements i..i+7. With `const bool ALIGNED` every i is a multiple
// of 4. WRITE8 makes `void put_name(uint i, vec4 x)`, which writes elements i..i+3, in the same way.
#define READ8(at, Name, name)                                                                 \
    layout(binding = at, scalar) readonly buffer Name { vec4 name##4[]; };                    \
    layout(binding = at, scalar) readonly buffer Name##1 { float name##1[]; };                \
    Elems8 load_##name(const uint i) {                                                        \
        if (ALIGNED) {                                                                        \
            return Elems8(name##4[i >> 2], name##4[(i >> 2) + 1]);                            \
        }                                                                                     \
        return Elems8(vec4(name##1[i], name##1[i + 1], name##1[i + 2], name##1[i + 3]),       \
                      vec4(name##1[i + 4], name##1[i + 5], name##1[i + 6], name##1[i + 7]));  \
    }

#define WRITE8(at, Name, name)                                                   \
    layout(binding = at, scalar) writeonly buffer Name { vec4 name##4[]; };      \
    layout(binding = at, scalar) writeonly buffer Name##1 { float name##1[]; };  \
    void put_##name(const uint i, const vec4 x) {                                \
        if (ALIGNED) {                                                           \
            name##4[i >> 2] = x;                                                 \
            return;                                                              \
        }                                                                        \
        [[unroll]] for (uint e = 0; e < 4; e++) {                                \
            name##1[i + e] = x[e];                                               \
        }                                                                        \
    }
