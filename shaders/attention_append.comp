// attention_append: writes new keys and values to their places in a cache, and rotates K and Q
// by their positions (RoPE).
//
//     position of new key i of sequence b    = seq_lens[b] + i
//     position of query i                    = seq_lens[b] + new_keys - seq_q + i, 0 at least
//     (x, y)                                -> (x cos - y sin, y cos + x sin)
//
//     new_k, new_v  (batch, num_kv_heads, new_keys, head_dim or value_dim)       ELEM, any strides, last axis contiguous
//     k, v          (batch or pages, num_kv_heads, keys, head_dim or value_dim)  likewise, written
//     q             (batch, num_heads, seq_q, head_dim)                          likewise, rotated in place
//     cos_table,
//     sin_table     (positions, ROTARY / 2)                                      f32, contiguous
//     seq_lens      (batch)                                                      i32: keys before the new ones
//     block_table   (batch, pages of a sequence)                                 i32: its pages in order
//     state         status
//
// An invocation has an item: WIDTH elements of a row and, if they are rotated, their partners.
// x and y are elements i and i + ROTARY/2; with INTERLEAVED they are 2i and 2i + 1, which are in
// one item. So it can rotate in place.
//
// With CACHE8 k and v are an 8-bit cache with rows of uvec2, and an item of a new key is the
// elements of one scale (lib/append_cache8.glsl). Without it, they are of ELEM
// (lib/append_cache16.glsl).
//
// A sequence without room for the new keys stays unchanged, and keys whose page does not exist
// are skipped; the status then reports that.
//
// Dispatch: (k_groups + v_groups + groups of q, any number). In Y the workgroups take sequences
// in turn; in X each works on items in turn.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 256;
layout(constant_id = 1) const uint HEAD_DIM = 128;
layout(constant_id = 2) const uint VALUE_DIM = 128;
layout(constant_id = 3) const uint PAGE_SIZE = 0;         // keys of a page, a power of two; 0: no pages
layout(constant_id = 4) const bool ALIGNED = true;        // offsets and strides of k, v, new_k, new_v, q are multiples of 16 bytes
layout(constant_id = 5) const bool BATCH_IDX = false;
layout(constant_id = 6) const uint ROTARY = 128;          // columns that are rotated, even
layout(constant_id = 7) const bool INTERLEAVED = false;
layout(constant_id = 8) const uint WIDTH = 8;             // VEC; less where partners would be within a vector, or half in it
layout(constant_id = 9) const bool TABLE_ALIGNED = true;  // rows of the tables begin at multiples of 16 bytes
#ifdef CACHE8
layout(constant_id = 10) const uint CACHE_FORMAT = 0;  // lib/cache8.glsl
layout(constant_id = 11) const bool SCALED = true;     // of e4m3: key heads have scales
#endif
layout(local_size_x_id = 0) in;

#include "lib/strides.glsl"

layout(push_constant, scalar) uniform Params {
    uint batch;
    uint seq_q;
    uint heads;
    uint kv_heads;
    int new_keys;
    int capacity;   // keys that a sequence can have
    uint pages;     // that there are; without pages, sequences of the cache
    uint k_groups;  // workgroups for k
    uint v_groups;
    STRIDES(new_k)
    STRIDES(new_v)
    STRIDES(k)  // from a page to the next, where there are pages
    STRIDES(v)
    STRIDES(q)
    uint seq_lens_offset;
    BATCH_STRIDE(block_table)
    uint state_offset;
    uint cos_offset;
    uint sin_offset;
    uint batch_idx_offset;
#ifdef CACHE8
    uint k_scale_offset;
    uint k_scale_stride_h;  // of e4m3
    uint v_scale_offset;
    uint v_scale_stride_h;
#endif
} p;

#include "lib/vec16.glsl"
#include "lib/cache_status.glsl"

// What a call does not have holds another tensor, and is not touched.
TENSOR16(0, readonly, NewK, new_k)
TENSOR16(1, readonly, NewV, new_v)
#ifdef CACHE8
layout(binding = 2, scalar) writeonly buffer K { uvec2 k8[]; };
layout(binding = 3, scalar) writeonly buffer V { uvec2 v8[]; };
#else
TENSOR16(2, writeonly, K, k)
TENSOR16(3, writeonly, V, v)
#endif
TENSOR16(4, , Q, q)
layout(binding = 5, scalar) readonly buffer SeqLens { int seq_lens[]; };
layout(binding = 6, scalar) readonly buffer BlockTable { int block_table[]; };
layout(binding = 7, scalar) buffer State { uint state[]; };
layout(binding = 8, scalar) readonly buffer Cos { float cos_table[]; };
layout(binding = 8, scalar) readonly buffer Cos4 { vec4 cos_table4[]; };
layout(binding = 9, scalar) readonly buffer Sin { float sin_table[]; };
layout(binding = 9, scalar) readonly buffer Sin4 { vec4 sin_table4[]; };
layout(binding = 10, scalar) readonly buffer BatchIdx { int batch_idx[]; };
#ifdef CACHE8
layout(binding = 11, scalar) buffer KScale { float k_scale[]; };       // e4m3: of a key head, read
layout(binding = 11, scalar) buffer KScale1 { uint16_t k_scale1[]; };  // q8_0: float16, of a block, written
layout(binding = 12, scalar) buffer VScale { float v_scale[]; };
layout(binding = 12, scalar) buffer VScale1 { uint16_t v_scale1[]; };
#endif

LOAD16(new_k)
LOAD16(new_v)
LOAD16(q)
#ifndef CACHE8
STORE16(k)
STORE16(v)
#endif
STORE16(q)

const uint ANGLES = ROTARY == 0 ? 1 : ROTARY / 2;                   // of a position
const uint SPAN = INTERLEAVED ? ROTARY : ROTARY / 2;               // columns that begin items with rotated elements
const uint ROTATED_ITEMS = SPAN / WIDTH;                           // of a row, the first
#ifdef CACHE8
#include "lib/cache8.glsl"
const uint K_ITEMS = HEAD_DIM / (CACHE_FORMAT == Q8_0 ? BLOCK : 8);
const uint V_ITEMS = VALUE_DIM / (CACHE_FORMAT == Q8_0 ? BLOCK : 8);
#else
const uint K_ITEMS = ROTATED_ITEMS + (HEAD_DIM - ROTARY) / WIDTH;  // of a row of k
#endif
const uint Q_ITEMS = ROTATED_ITEMS == 0 ? 1 : ROTATED_ITEMS;       // of a row of q: there is none without rotation
#ifndef CACHE8
const uint V_ITEMS = VALUE_DIM / VEC;
#endif

uint found_bad = 0;  // by this invocation

#include "lib/append_rotate.glsl"

// The place of a token: a sequence of the cache or a page, and the key in it.
struct Slot {
    bool found;
    uint outer, inner;
};

Slot slot_of(const uint batch, const uint cache, const uint position) {
    if (PAGE_SIZE == 0) {
        return Slot(true, cache, position);
    }
    const uint page = uint(block_table[p.block_table_offset + batch * p.block_table_stride_b + position / PAGE_SIZE]);
    found_bad |= page < p.pages ? 0 : BAD_PAGE;
    return Slot(page < p.pages, page, position % PAGE_SIZE);
}

#ifdef CACHE8
#include "lib/append_cache8.glsl"
#else
#include "lib/append_cache16.glsl"
#endif

// rotate_q rotates an item of the queries of a sequence with `keys` keys.
void rotate_q(const uint batch, const uint keys, const uint item) {
    const uint column = item % Q_ITEMS * WIDTH;
    const uint head = item / Q_ITEMS % p.heads;
    const uint i = item / Q_ITEMS / p.heads;
    const uint position = uint(max(int(keys) + p.new_keys - int(p.seq_q) + int(i), 0));
    const uint at = HEAD_AT(q, batch, head) + i * p.q_stride_s + column;
    uvec4 a = load_q(at, WIDTH);
    if (INTERLEAVED) {
        turn_neighbours(a, position, column);
    } else {
        uvec4 b = load_q(at + ROTARY / 2, WIDTH);
        turn_halves(a, b, position, column);
        store_q(at + ROTARY / 2, WIDTH, b);
    }
    store_q(at, WIDTH, a);
}

void append(const uint batch) {
    const int keys = seq_lens[p.seq_lens_offset + batch];
    if (keys < 0 || keys > p.capacity - p.new_keys) {
        found_bad |= BAD_LENGTH;
        return;
    }
    uint cache = batch;
    if (BATCH_IDX) {
        cache = uint(batch_idx[p.batch_idx_offset + batch]);
        if (cache >= p.pages) {
            found_bad |= BAD_BATCH;
            return;
        }
    }
    const uint kv_rows = uint(p.new_keys) * p.kv_heads;
    const uint v_end = p.k_groups + p.v_groups;
    const uint group = gl_WorkGroupID.x;
    const uint tid = gl_LocalInvocationIndex;
    if (group < p.k_groups) {
        for (uint i = group * WORKGROUP_SIZE + tid; i < kv_rows * K_ITEMS; i += p.k_groups * WORKGROUP_SIZE) {
            append_k(batch, cache, uint(keys), i);
        }
    } else if (group < v_end) {
        for (uint i = (group - p.k_groups) * WORKGROUP_SIZE + tid; i < kv_rows * V_ITEMS; i += p.v_groups * WORKGROUP_SIZE) {
            append_v(batch, cache, uint(keys), i);
        }
    } else {
        for (uint i = (group - v_end) * WORKGROUP_SIZE + tid; i < p.heads * p.seq_q * Q_ITEMS; i += (gl_NumWorkGroups.x - v_end) * WORKGROUP_SIZE) {
            rotate_q(batch, uint(keys), i);
        }
    }
}

void main() {
    for (uint batch = gl_WorkGroupID.y; batch < p.batch; batch += gl_NumWorkGroups.y) {
        append(batch);
    }
    if (found_bad != 0) {
        atomicOr(state[p.state_offset], found_bad);
    }
}
