package bench

import (
	"context"
	"encoding/binary"
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// uploadValues is t.Upload, for tensors of integers and bool, too.
func uploadValues(ctx context.Context, t vk.Tensor, x []float32) error {
	switch t.DType {
	case dtype.Int32:
		ints := make([]int32, len(x))
		for i := range x {
			ints[i] = int32(x[i])
		}
		return t.UploadInts(ctx, ints)
	case dtype.Bool:
		bools := make([]bool, len(x))
		for i := range x {
			bools[i] = x[i] != 0
		}
		return t.UploadBools(ctx, bools)
	case dtype.Int8:
		raw := make([]byte, len(x))
		for i := range x {
			raw[i] = byte(int8(x[i]))
		}
		return t.UploadRaw(ctx, raw)
	}
	return t.Upload(ctx, x)
}

// downloadValues is t.Download, for tensors of integers, too.
func downloadValues(ctx context.Context, t vk.Tensor, x []float32) error {
	if t.DType != dtype.Int32 && t.DType != dtype.Int8 {
		return t.Download(ctx, x)
	}
	raw := make([]byte, t.DType.Size()*len(x))
	if err := t.DownloadRaw(ctx, raw); err != nil {
		return err
	}
	decodeValues(t.DType, x, raw)
	return nil
}

// decodeValues reads x from a storage format, little endian.
func decodeValues(t dtype.DType, x []float32, raw []byte) {
	for i := range x {
		switch t {
		case dtype.Float16:
			x[i] = dtype.FromFloat16(binary.LittleEndian.Uint16(raw[2*i:]))
		case dtype.BFloat16:
			x[i] = dtype.FromBFloat16(binary.LittleEndian.Uint16(raw[2*i:]))
		case dtype.Int32:
			x[i] = float32(int32(binary.LittleEndian.Uint32(raw[4*i:])))
		case dtype.E4M3:
			x[i] = dtype.FromE4M3(raw[i])
		case dtype.Int8:
			x[i] = float32(int8(raw[i]))
		default:
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		}
	}
}
