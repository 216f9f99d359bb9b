package bench

import (
	"context"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/dtype/storage"
	"github.com/flashvk/flashvk/vk"
)

// floats reports whether tensors of a format take and give numbers of float32 by themselves.
func floats(t dtype.DType) bool { return t.Float() || t == dtype.E4M3 }

// uploadValues is t.Upload, for tensors of integers and bool, too.
func uploadValues(ctx context.Context, t vk.Tensor, x []float32) error {
	if floats(t.DType) {
		return t.Upload(ctx, x)
	}
	return t.UploadRaw(ctx, storage.Bytes(t.DType, x))
}

// downloadValues is t.Download, likewise.
func downloadValues(ctx context.Context, t vk.Tensor, x []float32) error {
	if floats(t.DType) {
		return t.Download(ctx, x)
	}
	raw := make([]byte, t.DType.Size()*len(x))
	if err := t.DownloadRaw(ctx, raw); err != nil {
		return err
	}
	storage.Decode(t.DType, x, raw)
	return nil
}
