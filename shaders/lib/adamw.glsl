// adamw: the table of chunks and the state, which the kernels of the optimizer share.
//
// A chunk is a piece of one parameter tensor, at most CHUNK elements. It has its position in
// each buffer, in elements. adamw_prepare writes the state, adamw reads it.

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
const uint CHUNK_DECAYS = 2;   // this tensor has weight decay

struct State {
    int step;         // applied steps
    float lr;         // set by the host
    float norm;       // of all gradients, before clipping
    int skipped;      // steps that were not applied, because the norm was not finite
    float scale;      // factor of the gradients
    float step_size;  // lr / (1 - beta1^step)
    float v_scale;    // 1 / sqrt(1 - beta2^step)
    uint apply;       // 0: this step is skipped
};
