// attention_bwd_dbias_stored: the gradient of a bias, from dX that attention_bwd_dq_matrix.comp has stored.
//
//     dBias = sum of dX over what shares an element of the bias      without Softcap, so that dX is dS
//
//     stored  (heads, pages, 2, BLOCK_M, BLOCK_M)            ELEM, of which dX counts, see lib/pages.glsl
//     out     (batch or 1, num_heads or 1, seq_q, seq_kv)    the bias's format, any strides
//     sums    out's shape, contiguous                        f32: of heads that are not all stored at once, those so far
//     with SUM_ROWS: out (batch, num_heads, seq_kv)          f32, any strides
//
// An invocation owns eight elements, a uvec4 of a page, and adds up those heads that are stored and share
// them, in their order. With SUM_ROWS a workgroup owns a head's block of keys, and
// attention_bwd_sum.comp adds up what heads and batches share.
//
// Dispatch: (key blocks * ceil(PAGE8 / WORKGROUP_SIZE), row blocks, heads of out in all its batches), with SUM_ROWS
// (key blocks, 1, stored heads).
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint WORKGROUP_SIZE = 128;  // a multiple of 64
layout(constant_id = 1) const uint BLOCK_M = 128;
layout(constant_id = 2) const bool PACKED = true;  // see lib/pages.glsl
layout(constant_id = 3) const bool SUM_BATCHES = false;
layout(constant_id = 4) const bool SUM_HEADS = false;
layout(constant_id = 5) const bool SUM_ROWS = false;  // then neither of the others
layout(local_size_x_id = 0) in;

#define FEATURES_ID 6
#define FEATURES_BINDING 3
#include "lib/element.glsl"
#include "lib/params.glsl"

BEGIN_PARAMS
    uint seq_q;
    uint seq_kv;
    int causal_shift;   // row i sees keys j <= i + causal_shift
    uint batches;
    uint num_heads;
    uint num_kv_heads;
    uint first;         // number of the first head of the dispatch
    uint first_head;    // of batch*num_kv_heads, the first that is stored
    uint heads;         // of keys that are
    uint first_member;  // of num_heads/num_kv_heads that are
    uint members;
    uint pages_offset;  // uvec4, lib/pages.glsl
    uint head_pages;
    uint block_pages;
    uint sums_offset;   // elements, like all that follow
    STRIDES(out)
END_PARAMS

// Rows and keys of a bias count within the sequence.
void skip_rows(const uint n) {}
void skip_keys(const uint n) {}

layout(binding = 0, scalar) readonly buffer Stored { uvec4 stored8[]; };
layout(binding = 1, scalar) buffer Sums { float sums[]; };
layout(binding = 2, scalar) writeonly buffer Out { ELEM out1[]; };
layout(binding = 2, scalar) writeonly buffer Out32 { float out32[]; };

#define WITHOUT_SCORES
#include "lib/sequence.glsl"
#include "lib/mask.glsl"
#include "lib/pages.glsl"

// Eight elements.
struct Eight {
    vec4 low;
    vec4 high;
};

// add adds the elements of a uvec4 of a page.
void add(inout Eight sum, const uint at) {
    const uvec4 x = stored8[at];
    sum.low += widen(x.xy);
    sum.high += widen(x.zw);
}

// page_start returns where dX of a page of a stored head begins.
uint page_start(const uint number, const uint page) {
    return p.pages_offset + (number * p.head_pages + page) * 2 * PAGE8 + PAGE8;
}

// place returns the row and the key of a page that element e of its uvec4 number u is of.
uvec2 place(const uint u, const uint e) {
    if (!PACKED) {
        return uvec2(u / PAGE_LD, u % PAGE_LD * 8 + e);
    }
    const uint tile = u / 64;
    const uint row = tile / (BLOCK_M / 32) * 16 + u / 4 % 8 + e % 2 * 8;
    return uvec2(row, tile % (BLOCK_M / 32) * 32 + u % 4 * 2 + u / 32 % 2 + e / 2 * 8);
}

void put(const uint at, const float x) {
    if (BIAS_F32 || SUM_ROWS) {
        out32[at] = x;
    } else {
        out1[at] = NARROW(x);
    }
}

void sum_heads() {
    const uint PARTS = (PAGE8 + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;
    const uint u = gl_WorkGroupID.x % PARTS * WORKGROUP_SIZE + gl_LocalInvocationIndex;
    const uint col_block = gl_WorkGroupID.x / PARTS;
    const uint row_block = gl_WorkGroupID.y;
    const uint number = p.first + gl_WorkGroupID.z;
    const uint out_heads = SUM_HEADS ? 1 : p.num_heads;
    const uint first_batch = number / out_heads;
    const uint first_head = number % out_heads;
    if (u >= PAGE8) {
        return;
    }
    const uint end_batch = SUM_BATCHES ? p.batches : first_batch + 1;
    const uint end_head = SUM_HEADS ? p.num_heads : first_head + 1;
    const uint heads_per_kv = p.num_heads / p.num_kv_heads;
    Eight sum = Eight(vec4(0.0), vec4(0.0));
    bool before = false;  // whether heads that share them were stored before,
    bool now = false;
    bool after = false;   // and will be
    [[dont_unroll]] for (uint batch = first_batch; batch < end_batch; batch++) {
        p = args.plain;
        enter_sequence(batch);
        const int page = int(col_block) - pages_from(row_block);
        const bool exists = row_block * BLOCK_M < p.seq_q && page >= 0 && page < pages_of(row_block);
        const uint at = pages_before(row_block) + uint(page);
        [[dont_unroll]] for (uint head = first_head; head < end_head; head++) {
            const uint key_head = batch * p.num_kv_heads + head / heads_per_kv;
            const uint member = head % heads_per_kv;
            const bool in_heads = key_head >= p.first_head && key_head < p.first_head + p.heads;
            const bool is_stored = in_heads && member >= p.first_member && member < p.first_member + p.members;
            const bool was = key_head < p.first_head || in_heads && member < p.first_member;
            before = before || was;
            now = now || is_stored;
            after = after || !is_stored && !was;
            if (is_stored && exists) {
                add(sum, page_start((key_head - p.first_head) * p.members + member - p.first_member, at) + u);
            }
        }
    }
    if (!now) {
        return;
    }
    const uint seq_q = args.plain.seq_q;
    const uint seq_kv = args.plain.seq_kv;
    const uint base = HEAD_AT(out, first_batch, first_head);
    [[unroll]] for (uint e = 0; e < 8; e++) {
        const uvec2 at = uvec2(row_block, col_block) * BLOCK_M + place(u, e);
        if (at.x < seq_q && at.y < seq_kv) {
            const uint sum_at = p.sums_offset + (number * seq_q + at.x) * seq_kv + at.y;
            float x = e < 4 ? sum.low[e % 4] : sum.high[e % 4];
            x += before ? sums[sum_at] : 0.0;
            if (after) {
                sums[sum_at] = x;
            } else {
                put(base + at.x * p.out_stride_s + at.y, x);
            }
        }
    }
}

// A line has all keys of a page: it is a row, or a row of matrices, of LINE uvec4. Up to SIDE of these are
// summed at a time, each by LANES invocations, which take lines in turn.
const uint LINE = PACKED ? 2 * BLOCK_M : BLOCK_M / 8;
const uint SIDE = LINE < WORKGROUP_SIZE ? LINE : WORKGROUP_SIZE;
const uint LANES = WORKGROUP_SIZE / SIDE;

shared vec4 partial[SUM_ROWS ? 2 * WORKGROUP_SIZE : 1];  // (LANES, SIDE, 8)

// sum_key returns the sum of a key of the page over partial, of which the first is uvec4 `from` of a line; 0 if
// the key is not among these.
float sum_key(const uint key, const uint from) {
    const uint at = (PACKED ? key / 32 * 64 + key % 2 * 32 + key % 8 / 2 : key / 8) - from;
    float x = 0.0;
    if (at >= SIDE) {  // also what is before `from`
        return x;
    }
    for (uint lane = 0; lane < LANES; lane++) {
        if (PACKED) {
            for (uint row = 0; row < 8; row++) {  // and row + 8
                const vec4 four = partial[2 * (lane * SIDE + at + row * 4) + key % 32 / 16];
                x += key / 8 % 2 == 0 ? four.x + four.y : four.z + four.w;
            }
        } else {
            x += partial[2 * (lane * SIDE + at) + key % 8 / 4][key % 4];
        }
    }
    return x;
}

void sum_rows() {
    const uint tid = gl_LocalInvocationIndex;
    const uint number = p.first + gl_WorkGroupID.z;
    const uint col_block = gl_WorkGroupID.x;
    const uint heads_per_kv = p.num_heads / p.num_kv_heads;
    const uint key_head = p.first_head + number / p.members;
    const uint batch = key_head / p.num_kv_heads;
    const uint head = key_head % p.num_kv_heads * heads_per_kv + p.first_member + number % p.members;
    const uint base = HEAD_AT(out, batch, head);
    enter_sequence(batch);
    const bool exists = col_block * BLOCK_M < p.seq_kv;
    const uint first_block = exists ? block_seeing(col_block) : 0;
    const uint end_block = exists ? end_blocks(col_block) : 0;
    [[dont_unroll]] for (uint from = 0; from < LINE; from += SIDE) {
        Eight sum = Eight(vec4(0.0), vec4(0.0));
        if (tid < LANES * SIDE && from + tid % SIDE < LINE) {
            [[dont_unroll]] for (uint block = first_block; block < end_block; block++) {
                const uint start = page_start(number, page_at(block, col_block));
                for (uint u = tid / SIDE * LINE + from + tid % SIDE; u < PAGE8; u += LANES * LINE) {
                    add(sum, start + u);
                }
            }
        }
        barrier();  // partial is read before the next is written
        partial[2 * tid] = sum.low;
        partial[2 * tid + 1] = sum.high;
        barrier();  // partial written before it is read
        for (uint key = tid; key < BLOCK_M; key += WORKGROUP_SIZE) {
            const bool here = (PACKED ? key / 32 * 64 : key / 8) - from < SIDE;
            if (here && col_block * BLOCK_M + key < args.plain.seq_kv) {
                put(base + col_block * BLOCK_M + key, sum_key(key, from));
            }
        }
    }
}

void main() {
    if (SUM_ROWS) {
        sum_rows();
    } else {
        sum_heads();
    }
}
