// append_cache8: new keys and values become 8 bits (attention_append.comp, lib/cache8.glsl). What
// is rotated is not rounded in between.

#include "narrow_f16.glsl"
#include "to_e4m3.glsl"

const uint ITEM = CACHE_FORMAT == Q8_0 ? BLOCK : 8;  // elements
const uint ITEM_QUADS = ITEM / 4;

// q8_scale returns the bits of the float16 that a block is stored with. Elements that are NaN, which
// q8_0 has not, are 0 from then on.
uint q8_scale(inout vec4 x[ITEM_QUADS]) {
    float top = 0.0;
    [[unroll]] for (uint i = 0; i < ITEM_QUADS; i++) {
        [[unroll]] for (uint e = 0; e < 4; e++) {
            const uint magnitude = floatBitsToUint(x[i][e]) & 0x7fffffffu;
            if (magnitude > 0x7f800000u) {
                x[i][e] = 0.0;
            } else {
                top = max(top, uintBitsToFloat(magnitude));
            }
        }
    }
    return narrow_f16(min(top / 127.0, 515.5));  // of which 127 are a float16
}

// q8_word returns four elements times the inverse of their scale as bytes.
uint q8_word(const vec4 x, const float inverse) {
    const uvec4 q = uvec4(ivec4(clamp(roundEven(x * inverse), -127.0, 127.0))) & 0xffu;
    return q.x | q.y << 8 | q.z << 16 | q.w << 24;
}

// turned returns element `column` of the new key whose row begins at `row`, rotated.
float turned(const uint row, const uint position, const uint column) {
    const float own = WIDEN(new_k1[row + column]);
    if (column >= ROTARY) {
        return own;
    }
    const uint half_row = ROTARY / 2;
    const bool second = INTERLEAVED ? column % 2 == 1 : column >= half_row;
    const uint angle = INTERLEAVED ? column / 2 : second ? column - half_row : column;
    const uint partner = INTERLEAVED ? column ^ 1 : second ? angle : column + half_row;
    const float c = cos_table[p.cos_offset + position * ANGLES + angle];
    const float s = sin_table[p.sin_offset + position * ANGLES + angle];
    const float other = WIDEN(new_k1[row + partner]);
    precise const float result = own * c + (second ? other : -other) * s;
    return result;
}

// turned8 sets x and y to eight of them, from a multiple of 8 on.
void turned8(const uint row, const uint position, const uint column, out vec4 x, out vec4 y) {
    const uvec4 own = load_new_k(row + column, VEC);
    x = quad(own, 0);
    y = quad(own, 1);
    if (column >= ROTARY) {
        return;
    }
    const uint cos_row = p.cos_offset + position * ANGLES;
    const uint sin_row = p.sin_offset + position * ANGLES;
    if (WIDTH != VEC) {
        [[unroll]] for (uint e = 0; e < 4; e++) {
            x[e] = turned(row, position, column + e);
            y[e] = turned(row, position, column + 4 + e);
        }
    } else if (INTERLEAVED) {
        vec4 u = vec4(x.xz, y.xz);
        vec4 v = vec4(x.yw, y.yw);
        turn(u, v, cos_of(cos_row, column / 2), sin_of(sin_row, column / 2));
        x = vec4(u.x, v.x, u.y, v.y);
        y = vec4(u.z, v.z, u.w, v.w);
    } else {
        const bool second = column >= ROTARY / 2;
        const uint angle = second ? column - ROTARY / 2 : column;
        const uvec4 partner = load_new_k(row + (second ? angle : column + ROTARY / 2), VEC);
        const float sign = second ? 1.0 : -1.0;
        precise const vec4 a = x * cos_of(cos_row, angle) + sign * quad(partner, 0) * sin_of(sin_row, angle);
        precise const vec4 b = y * cos_of(cos_row, angle + 4) + sign * quad(partner, 1) * sin_of(sin_row, angle + 4);
        x = a;
        y = b;
    }
}

// DEFINE_STORE_ITEM(name, eights, scales, scale1, offset, stride_h) makes `void name(uint at,
// uint head, vec4 x[ITEM_QUADS])`, which stores an item as elements `at` and on of a cache.
#define DEFINE_STORE_ITEM(name, eights, scale, scale1, first, scale_offset, scale_stride_h)                \
    void name(const uint at, const uint head, inout vec4 x[ITEM_QUADS]) {                                  \
        if (CACHE_FORMAT == E4M3) {                                                                        \
            const float inverse = SCALED ? 1.0 / scale[scale_offset + head * scale_stride_h] : 1.0;        \
            [[unroll]] for (uint i = 0; i < ITEM_QUADS; i += 2) {                                          \
                eights[at / 8 + i / 2] = uvec2(e4m3_word(x[i] * inverse), e4m3_word(x[i + 1] * inverse));  \
            }                                                                                              \
            return;                                                                                        \
        }                                                                                                  \
        const uint bits = q8_scale(x);                                                                     \
        const float d = unpackHalf2x16(bits).x;                                                            \
        const float inverse = d > 0.0 ? 1.0 / d : 0.0;                                                     \
        scale1[scale_offset + (at - first) / BLOCK] = uint16_t(bits);                                      \
        [[unroll]] for (uint i = 0; i < ITEM_QUADS; i += 2) {                                              \
            eights[at / 8 + i / 2] = uvec2(q8_word(x[i], inverse), q8_word(x[i + 1], inverse));            \
        }                                                                                                  \
    }

uint e4m3_word(const vec4 x) {
    return to_e4m3(x.x) | to_e4m3(x.y) << 8 | to_e4m3(x.z) << 16 | to_e4m3(x.w) << 24;
}

DEFINE_STORE_ITEM(store_k, k8, k_scale, k_scale1, p.k_offset, p.k_scale_offset, p.k_scale_stride_h)
DEFINE_STORE_ITEM(store_v, v8, v_scale, v_scale1, p.v_offset, p.v_scale_offset, p.v_scale_stride_h)

// plain8 sets x and y to eight elements of the new values, as turned8 does.
void plain8(const uint row, const uint position, const uint column, out vec4 x, out vec4 y) {
    const uvec4 own = load_new_v(row + column, VEC);
    x = quad(own, 0);
    y = quad(own, 1);
}

// DEFINE_APPEND_ITEM(name, items, from, to, load, store) makes `void name(uint batch, uint cache,
// uint keys, uint item)`, which writes item number `item` of the new keys, or values, of a sequence
// with `keys` keys; p.FROM_offset and strides say where these are, and p.TO_offset where they go.
#define DEFINE_APPEND_ITEM(name, items, from, to, load, store)                                                                          \
    void name(const uint batch, const uint cache, const uint keys, const uint item) {                                                   \
        const uint column = item % items * ITEM;                                                                                        \
        const uint head = item / items % p.kv_heads;                                                                                    \
        const uint i = item / items / p.kv_heads;                                                                                       \
        const Slot slot = slot_of(batch, cache, keys + i);                                                                              \
        if (!slot.found) {                                                                                                              \
            return;                                                                                                                     \
        }                                                                                                                               \
        const uint row = p.from##_offset + batch * p.from##_stride_b + head * p.from##_stride_h + i * p.from##_stride_s;                \
        vec4 x[ITEM_QUADS];                                                                                                             \
        [[unroll]] for (uint e = 0; e < ITEM_QUADS; e += 2) {                                                                           \
            load(row, keys + i, column + 4 * e, x[e], x[e + 1]);                                                                        \
        }                                                                                                                               \
        store(p.to##_offset + slot.outer * p.to##_stride_b + head * p.to##_stride_h + slot.inner * p.to##_stride_s + column, head, x);  \
    }

DEFINE_APPEND_ITEM(append_k, K_ITEMS, new_k, k, turned8, store_k)
DEFINE_APPEND_ITEM(append_v, V_ITEMS, new_v, v, plain8, store_v)
