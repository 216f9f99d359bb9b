// append_rotate: pairs of a row are rotated by its position (attention_append.comp).
//
// The includer has ROTARY, INTERLEAVED, WIDTH, TABLE_ALIGNED and ANGLES, and the tables.

// DEFINE_ANGLES makes `vec4 name(uint at, uint column)`: the entries of four angles from
// `column` on, in the row of a table that begins at `at`.
#define DEFINE_ANGLES(name, entries, entries4)                                                     \
    vec4 name(const uint at, const uint column) {                                                  \
        if (TABLE_ALIGNED && WIDTH == VEC) {                                                       \
            return entries4[(at + column) / 4];                                                    \
        }                                                                                          \
        vec4 x;                                                                                    \
        [[unroll]] for (uint e = 0; e < 4; e++) {                                                  \
            x[e] = entries[at + min(column + e, ANGLES - 1)]; /* what WIDTH leaves out is last */  \
        }                                                                                          \
        return x;                                                                                  \
    }

DEFINE_ANGLES(cos_of, cos_table, cos_table4)
DEFINE_ANGLES(sin_of, sin_table, sin_table4)

#include "turn.glsl"

// turn_halves rotates VEC pairs, a and b, from a column of a position on.
void turn_halves(inout uvec4 a, inout uvec4 b, const uint position, const uint column) {
    vec4 x[2], y[2];
    [[unroll]] for (uint i = 0; i < QUADS; i++) {
        x[i] = quad(a, i);
        y[i] = quad(b, i);
        const uint at = column + i * 4;
        turn(x[i], y[i], cos_of(p.cos_offset + position * ANGLES, at), sin_of(p.sin_offset + position * ANGLES, at));
    }
    a = pack(x[0], x[QUADS - 1]);
    b = pack(y[0], y[QUADS - 1]);
}

// turn_neighbours rotates the VEC/2 pairs of a, from a column of a position on.
void turn_neighbours(inout uvec4 a, const uint position, const uint column) {
    const uint angle = column / 2;
    // Four angles belong to two quads. The two angles of a float32 quad may be the last two of four.
    const bool last = VEC == 4 && TABLE_ALIGNED && WIDTH == VEC && angle % 4 != 0;
    const vec4 c = cos_of(p.cos_offset + position * ANGLES, angle);
    const vec4 s = sin_of(p.sin_offset + position * ANGLES, angle);
    const vec4 u = quad(a, 0);
    const vec4 v = quad(a, QUADS - 1);
    vec4 x = vec4(u.xz, v.xz);
    vec4 y = vec4(u.yw, v.yw);
    turn(x, y, last ? c.zwzw : c, last ? s.zwzw : s);
    a = pack(vec4(x.x, y.x, x.y, y.y), vec4(x.z, y.z, x.w, y.w));
}
