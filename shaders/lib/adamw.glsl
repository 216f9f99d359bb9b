// adamw: what the kernels of the optimizer share: the table of chunks and the state.
//
// A chunk is a piece of one parameter tensor, at most CHUNK elements: where it begins in
// each buffer, in elements. The state is written by adamw_prepare, read by adamw.
#ifndef LIB_ADAMW_GLSL
#define LIB_ADAMW_GLSL

struct Chunk {
    uint param;
    uint grad;
    uint m;
    uint v;
    uint copy;
    uint count;  // elements
    uint flags;
    uint unused;
};

const uint CHUNK_ALIGNED = 1;  // all of these positions are multiples of 4
const uint CHUNK_DECAYS = 2;   // the weight decay is for this tensor

struct State {
    int step;         // that were applied
    float lr;         // set by the host
    float norm;       // of all gradients, before clipping
    int skipped;      // steps that were not applied, for a norm that is not finite
    float scale;      // factor of the gradients
    float step_size;  // lr / (1 - beta1^step)
    float v_scale;    // 1 / sqrt(1 - beta2^step)
    uint apply;       // 0: this step is skipped
};

#endif
