package attention

// f32x2Table is fwdTable for float32 tensors on matrices. Tiles take twice the
// shared memory of 16-bit ones: 4 * BlockN rows of head_dim.
var f32x2Table = []fwdRow{
	{family: "hopper", headDim: 64, fill: 1, Config: Config{Impl: CoopMat2, Subgroups: 8, RowTiles: 1, BlockN: 64, Prefetch: true, SplitLoop: true}},
	{family: "hopper", headDim: 64, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 64, Prefetch: true, SplitLoop: true}},
	{family: "hopper", headDim: 128, fill: 1, Config: Config{Impl: CoopMat2, Subgroups: 8, RowTiles: 1, BlockN: 32, Prefetch: true, SplitLoop: true, Fence: 2}},
	{family: "hopper", headDim: 128, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 32, Prefetch: true, SplitLoop: true, Fence: 2}},
	{family: "hopper", headDim: 256, Config: Config{Impl: CoopMat2, Subgroups: 8, RowTiles: 1, BlockN: 16, SplitLoop: true, Fence: 2}},
	{family: "hopper", headDim: 64, Config: Config{Impl: CoopMat, Subgroups: 4, RowTiles: 2, BlockN: 32, Prefetch: true, SplitLoop: true}},
	{family: "hopper", headDim: 128, Config: Config{Impl: CoopMat, Subgroups: 8, RowTiles: 1, BlockN: 16, Prefetch: true, SplitLoop: true, Fence: 2}},

	// Small tiles, as in fwdTable.
	{family: "lavapipe", headDim: 256, Config: Config{Impl: CoopMat2, Subgroups: 2, RowTiles: 1, BlockN: 8}},
	{family: "lavapipe", headDim: 256, Config: Config{Impl: CoopMat, Subgroups: 2, RowTiles: 1, BlockN: 8}},

	// Any device with matrices, with less and less shared memory.
	{headDim: 64, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 32, SplitLoop: true}},
	{headDim: 256, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 16, SplitLoop: true}},
	{headDim: 64, Config: Config{Impl: CoopMat, Subgroups: 4, RowTiles: 1, BlockN: 32, SplitLoop: true}},
	{headDim: 256, Config: Config{Impl: CoopMat, Subgroups: 4, RowTiles: 1, BlockN: 16, SplitLoop: true}},
	{headDim: 256, Config: Config{Impl: CoopMat, Subgroups: 2, RowTiles: 1, BlockN: 16, SplitLoop: true}},
}
