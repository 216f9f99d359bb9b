// strides: where a tensor lies, as members of push constants in elements: its first element, and the
// distance from a batch, a head and a row to the next.

#define ROW_STRIDE(x) uint x##_offset; uint x##_stride;
#define BATCH_STRIDE(x) uint x##_offset; uint x##_stride_b;
#define HEAD_STRIDES(x) BATCH_STRIDE(x) uint x##_stride_h;
#define STRIDES(x) HEAD_STRIDES(x) uint x##_stride_s;

// HEAD_AT is where a head of a batch begins.
#define HEAD_AT(x, batch, head) (p.x##_offset + (batch) * p.x##_stride_b + (head) * p.x##_stride_h)
