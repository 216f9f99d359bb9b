// decode_loads8: queries for the products with, and the keys and values of a tile from a cache of
// 8 bits (lib/decode_operands.glsl). A tile is KEYS keys, 16 or two times 16.
//
// A word of K has four columns of a key: bytes 0 and 2, and 1 and 3 become neighbours, and so do
// these columns of Q. A word made of two columns of V of two neighbouring keys has, for each of the
// columns, bytes 0 and 2, or 1 and 3.
//
// Where rows are long enough, and begin at multiples of 16 bytes, two loads of 8 bytes are one of 16:
//
//     a load of K   columns 32*n + 8*t, or with WIDE_K 64*(n/2) + 16*t + 8*(n%2)
//     a load of V   columns 64*n + 8*g, or with WIDE_V 128*(n/2) + 16*g + 8*(n%2)

// key_column returns the first column of load n of K of lane t of four.
uint key_column(const uint n, const uint t) {
    return WIDE_K ? n / 2 * 64 + t * 16 + n % 2 * 8 : n * 32 + t * 8;
}

// value_column_of returns the column where load n of V of lanes g begins, among all columns.
uint value_column_of(const uint n, const uint g) {
    return WIDE_V ? n / 2 * 128 + g * 16 + n % 2 * 8 : n * 64 + g * 8;
}

uint value_column(const uint n) { return value_column_of(column_part() * V_LOADS + n, lane_g()); }

#ifdef ELEM_BF16
// A row of Q is multiplied by the power of two that brings its largest element to between 2^14 and
// 2^15: what float16 then loses is below 2^-38 of that. q_amax has that element's bits.
shared uint q_amax[ROW_TILES * 16];

uint exponent_of(const uint r) {
    return max(q_amax[r] >> 7, 15);  // so that both powers of two are normal
}
#endif

// row_scale returns what the products of row r are multiplied by.
float row_scale(const uint r) {
#ifdef ELEM_BF16
    return uintBitsToFloat((exponent_of(r) - 14) << 23);
#else
    return 1.0;
#endif
}

// four_halves returns the elements of a quad as operands: elements 0 and 2 in x, 1 and 3 in y.
uvec2 four_halves(const vec4 x) { return uvec2(packHalf2x16(x.xz), packHalf2x16(x.yw)); }

// share_q puts the operands of the part's rows into shared memory. The whole workgroup calls it.
void share_q(const Part part) {
    barrier();  // q_rows and q_amax of the part before are read
#ifdef ELEM_BF16
    for (uint r = gl_LocalInvocationIndex; r < ROW_TILES * 16; r += WORKGROUP_SIZE) {
        q_amax[r] = 0;
    }
    barrier();  // q_amax is 0
#endif
    for (uint i = gl_LocalInvocationIndex; i < Q_WORDS; i += WORKGROUP_SIZE) {
        const uint r = i / 32 % 2 * 8 + i % 32 / 4 + i / (K_LOADS * 64) * 16;
        const uint col = key_column(i / 64 % K_LOADS, i % 4);
        const uvec4 x = HEAD_DIM % 32 == 0 || col < HEAD_DIM ? load_q(q_at(part, r) + col, VEC) : uvec4(0);
#ifdef ELEM_BF16
        const uvec4 y = max(x & 0x7fffu, x >> 16 & 0x7fffu);
        atomicMax(q_amax[r], max(max(y.x, y.y), max(y.z, y.w)));
        q_rows[i] = x;
#else
        q_rows[i] = uvec4(x.x & 0xffffu | x.y << 16, x.x >> 16 | x.y & 0xffff0000u, x.z & 0xffffu | x.w << 16, x.z >> 16 | x.w & 0xffff0000u);
#endif
    }
    barrier();  // q_rows and q_amax are written
#ifdef ELEM_BF16
    for (uint i = gl_LocalInvocationIndex; i < Q_WORDS; i += WORKGROUP_SIZE) {
        const uint r = i / 32 % 2 * 8 + i % 32 / 4 + i / (K_LOADS * 64) * 16;
        const float power = uintBitsToFloat((268 - exponent_of(r)) << 23);  // 2^(141 - exponent)
        const uvec4 x = q_rows[i];
        q_rows[i] = uvec4(four_halves(quad(x, 0) * power), four_halves(quad(x, 1) * power));
    }
    barrier();  // q_rows are float16
#endif
}

const uint EIGHTS = KEYS / 8;    // of a tile: eight keys, which are of the same page
const uint HALVES = KEYS / 16;

#define Pages uvec4

// pages_of returns the page of each eighth of a tile.
Pages pages_of(const Part part, const uint tile) {
    uvec4 pages = uvec4(part.cache);
    if (PAGE_SIZE > 0) {
        [[unroll]] for (uint i = 0; i < EIGHTS; i++) {
            pages[i] = i * 8 % PAGE_SIZE == 0 ? look_up(part, key_of(part, tile, i * 8)) : pages[i - 1];
        }
    }
    return pages;
}

// Scales of q8_0 that a lane has of a key: of each load, where two of 8 bytes are one.
const uint K_SCALES = WIDE_K ? K_LOADS / 2 : K_LOADS;
const uint V_SCALES = WIDE_V ? V_LOADS / 2 : V_LOADS;

// Keys are a lane's 8 bytes of keys g, g + 8, ... of a tile, and their scales; Values are the same
// of its keys of V. Scales stay as they are loaded until they are used: whatever is made of them
// would wait for them, at the end of a turn.
struct Keys {
    uvec2 at[EIGHTS * K_LOADS];
    uint scales[EIGHTS * K_SCALES];
};

struct Values {
    uvec2 at[2 * EIGHTS * V_LOADS];
    uint scales[2 * EIGHTS * V_SCALES];
};

// Lanes beyond a row load its start, so that no load is conditional. Of K they take zeros; of V what
// they have is of columns that O has not.
void load_keys(const Part part, const uint tile, const uvec4 page, inout Keys k) {
    [[unroll]] for (uint i = 0; i < EIGHTS; i++) {
        const uint row = part.kv_head * p.k_stride_h + at_key(key_of(part, tile, lane_g() + 8 * i), page[i], p.k_stride_b, p.k_stride_s);
        const uint at = p.k_offset + row;
        if (WIDE_K) {
            [[unroll]] for (uint n = 0; n < K_LOADS; n += 2) {
                const uvec4 x = k16[(at + lane_t() * 16) / 16 + n * 2];
                k.at[i * K_LOADS + n] = x.xy;
                k.at[i * K_LOADS + n + 1] = x.zw;
            }
        } else {
            [[unroll]] for (uint n = 0; n < K_LOADS; n++) {
                const bool has = HEAD_DIM % 32 == 0 || key_column(n, lane_t()) < HEAD_DIM;
                const uvec2 x = k8[(at + (has ? key_column(n, lane_t()) : 0)) / 8];
                k.at[i * K_LOADS + n] = has ? x : uvec2(0);
            }
        }
        if (CACHE_FORMAT == Q8_0) {
            [[unroll]] for (uint n = 0; n < K_SCALES; n++) {
                k.scales[i * K_SCALES + n] = uint(k_scale1[p.k_scale_offset + row / BLOCK + key_column(n * K_LOADS / K_SCALES, lane_t()) / BLOCK]);
            }
        }
    }
}

void load_values(const Part part, const uint tile, const uvec4 page, inout Values v) {
    [[unroll]] for (uint j = 0; j < 2 * EIGHTS; j++) {
        const uint row = part.kv_head * p.v_stride_h + at_key(key_of(part, tile, value_key(j)), page[j / 2], p.v_stride_b, p.v_stride_s);
        const uint at = p.v_offset + row;
        if (WIDE_V) {
            [[unroll]] for (uint n = 0; n < V_LOADS; n += 2) {
                const uvec4 x = v16[(at + value_column(0)) / 16 + n * 4];
                v.at[j * V_LOADS + n] = x.xy;
                v.at[j * V_LOADS + n + 1] = x.zw;
            }
        } else {
            [[unroll]] for (uint n = 0; n < V_LOADS; n++) {
                const bool has = VALUE_DIM % (64 * COLUMN_PARTS) == 0 || value_column(n) < VALUE_DIM;
                v.at[j * V_LOADS + n] = v8[(at + (has ? value_column(n) : 0)) / 8];
            }
        }
        if (CACHE_FORMAT == Q8_0) {
            [[unroll]] for (uint n = 0; n < V_SCALES; n++) {
                const uint column = min(value_column(n * V_LOADS / V_SCALES), VALUE_DIM - 1);
                v.scales[j * V_SCALES + n] = uint(v_scale1[p.v_scale_offset + row / BLOCK + column / BLOCK]);
            }
        }
    }
}

// operands returns the elements of a word as float16, bytes 0 and 2 in x, bytes 1
// and 3 in y: of e4m3 times 2^-8, of q8_0 times the two scales, rounded.
uvec2 operands(const uint w, const uint scales) {
    if (CACHE_FORMAT == E4M3) {
        return e4m3_halves(w);
    }
    // 0x6400 is 1024, whose last place is 1; the sign's bit turned, a byte is its integer plus 128.
    const f16vec2 middle = f16vec2(1152.0);
    const f16vec2 x = unpackFloat2x16(w & 0x00ff00ffu ^ 0x64806480u) - middle;
    const f16vec2 y = unpackFloat2x16(w >> 8 & 0x00ff00ffu ^ 0x64806480u) - middle;
    const f16vec2 s = unpackFloat2x16(scales);
    return uvec2(packFloat2x16(x * s), packFloat2x16(y * s));
}

// low_or_high returns the low halves of two words, or the high ones.
uint low_or_high(const uint a, const uint b, const bool high) {
    const f16vec2 x = unpackFloat2x16(a);
    const f16vec2 y = unpackFloat2x16(b);
    return packFloat2x16(high ? f16vec2(x.y, y.y) : f16vec2(x.x, y.x));
}

// key_scale returns the scale of load n of key i*8 + g, twice.
uint key_scale(const Keys k, const uint i, const uint n) {
    const uint x = k.scales[i * K_SCALES + n * K_SCALES / K_LOADS];
    return CACHE_FORMAT == E4M3 ? 0 : x | x << 16;
}

// value_scales returns the scales of a lane's columns of load n of its keys j and j+1.
uint value_scales(const Values v, const uint j, const uint n) {
    const uint at = j * V_SCALES + n * V_SCALES / V_LOADS;
    return CACHE_FORMAT == E4M3 ? 0 : v.scales[at] | v.scales[at + V_SCALES] << 16;
}
