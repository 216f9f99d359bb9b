package optim

// ChunkElements is the size of a piece of a tensor.
const ChunkElements = chunkElements
