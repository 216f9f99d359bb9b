package attention

// bwdF32x2Table is bwdTable for float32 tensors on matrices. Tiles take twice the shared
// memory of 16-bit ones, 4 * Stream rows of head_dim, and so do the registers of K and V,
// or Q and dO, that a subgroup owns: with 16 keys, 2*head_dim words for each
// invocation of 32, half of them dK and dV.
var bwdF32x2Table = []bwdRow{
	// Swept on an H200, TUNING.md.
	{family: "hopper", headDim: 64, BackwardConfig: BackwardConfig{
		Impl: CoopMat2,
		DKV:  BackwardTile{Subgroups: 4, RowTiles: 1, Stream: 32, SplitLoop: true},
		DQ:   BackwardTile{Subgroups: 4, RowTiles: 1, Stream: 32, SplitLoop: true}, // 8 by 64 is 1 % faster alone, with twice the shared memory
	}},
	{family: "hopper", headDim: 128, BackwardConfig: BackwardConfig{
		Impl: CoopMat2,
		DKV:  BackwardTile{Subgroups: 4, RowTiles: 1, Stream: 16, SplitLoop: true},                           // spills 384 bytes: K, V, dK and dV alone are 256 registers
		DQ:   BackwardTile{Subgroups: 8, RowTiles: 1, Stream: 16, Prefetch: true, SplitLoop: true, Fence: 2}, // 32 without prefetch is 5 % faster alone, and spills 352 bytes
	}},
	{family: "hopper", headDim: 64, BackwardConfig: BackwardConfig{
		Impl: CoopMat,
		DKV:  BackwardTile{Subgroups: 4, RowTiles: 1, Stream: 32, SplitLoop: true},
		DQ:   BackwardTile{Subgroups: 8, RowTiles: 1, Stream: 32, Prefetch: true, SplitLoop: true},
	}},
	{family: "hopper", headDim: 128, BackwardConfig: BackwardConfig{
		Impl: CoopMat,
		DKV:  BackwardTile{Subgroups: 4, RowTiles: 1, Stream: 16, SplitLoop: true},
		DQ:   BackwardTile{Subgroups: 8, RowTiles: 1, Stream: 16, Prefetch: true, SplitLoop: true, Fence: 2},
	}},

	// Small tiles, as in bwdTable.
	{family: "lavapipe", headDim: 256, BackwardConfig: BackwardConfig{
		Impl: CoopMat2,
		DKV:  BackwardTile{Subgroups: 2, RowTiles: 1, Stream: 8},
		DQ:   BackwardTile{Subgroups: 2, RowTiles: 1, Stream: 8},
	}},
	{family: "lavapipe", headDim: 256, BackwardConfig: BackwardConfig{
		Impl: CoopMat,
		DKV:  BackwardTile{Subgroups: 2, RowTiles: 1, Stream: 8},
		DQ:   BackwardTile{Subgroups: 2, RowTiles: 1, Stream: 8},
	}},

	// Any device with matrices, with less and less shared memory.
	{headDim: 64, BackwardConfig: BackwardConfig{
		Impl: CoopMat2,
		DKV:  BackwardTile{Subgroups: 4, RowTiles: 1, Stream: 32, SplitLoop: true},
		DQ:   BackwardTile{Subgroups: 4, RowTiles: 1, Stream: 32, SplitLoop: true},
	}},
	{headDim: 256, BackwardConfig: BackwardConfig{
		Impl: CoopMat2,
		DKV:  BackwardTile{Subgroups: 4, RowTiles: 1, Stream: 16, SplitLoop: true},
		DQ:   BackwardTile{Subgroups: 4, RowTiles: 1, Stream: 16, SplitLoop: true},
	}},
	{headDim: 64, BackwardConfig: BackwardConfig{
		Impl: CoopMat,
		DKV:  BackwardTile{Subgroups: 4, RowTiles: 1, Stream: 32, SplitLoop: true},
		DQ:   BackwardTile{Subgroups: 4, RowTiles: 1, Stream: 32, SplitLoop: true},
	}},
	{headDim: 256, BackwardConfig: BackwardConfig{
		Impl: CoopMat,
		DKV:  BackwardTile{Subgroups: 4, RowTiles: 1, Stream: 16, SplitLoop: true},
		DQ:   BackwardTile{Subgroups: 4, RowTiles: 1, Stream: 16, SplitLoop: true},
	}},
	{headDim: 256, BackwardConfig: BackwardConfig{
		Impl: CoopMat,
		DKV:  BackwardTile{Subgroups: 2, RowTiles: 1, Stream: 16, SplitLoop: true},
		DQ:   BackwardTile{Subgroups: 2, RowTiles: 1, Stream: 16, SplitLoop: true},
	}},
}
