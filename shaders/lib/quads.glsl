// quads: elements of 16x16 matrices where NVIDIA keeps them: element i of lane 4g + t, of
// accumulators and left matrices, lies in row g + i/4*8 and column 2t + i%2 + i%4/2*8, and right
// matrices are left ones with rows and columns exchanged. chips.AsksQuads asks the device.
//
// The includer includes lib/element.glsl.

uint lane_g() { return gl_SubgroupInvocationID / 4; }
uint lane_t() { return gl_SubgroupInvocationID % 4; }

// DEFINE_SET(Mat, set) makes `set(m, i, x)`: elements 2i and 2i+1 of m are the halves of x. As a
// vector of float16 they stay in one register, which there is not of bfloat16.
#ifdef CACHE8  // operands are float16 whatever the format of Q
#define DEFINE_SET(Mat, set)                             \
    void set(inout Mat m, const uint i, const uint x) {  \
        const f16vec2 halves = unpackFloat2x16(x);       \
        m[2 * i] = halves.x;                             \
        m[2 * i + 1] = halves.y;                         \
    }
#else
#ifdef ELEM_F16
#define FROM_BITS(x) uint16BitsToHalf(uint16_t(x))
#else
#define FROM_BITS(x) uintBitsToBFloat16EXT(uint16_t(x))
#endif

#define DEFINE_SET(Mat, set)                             \
    void set(inout Mat m, const uint i, const uint x) {  \
        m[2 * i] = FROM_BITS(x & 0xffffu);               \
        m[2 * i + 1] = FROM_BITS(x >> 16);               \
    }
#endif
