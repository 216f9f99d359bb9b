package attention

import (
	"context"
	"fmt"
	"reflect"

	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// HostTensors are Tensors on the host, for ForwardHost: whole tensors of the same shapes in
// row-major order. Tensors of features that are off are nil; LSE may be nil.
type HostTensors struct {
	Q, K, V, O, LSE []float32 // the fields of Tensors, in their order

	Bias        []float32
	ALiBiSlopes []float32
	Sinks       []float32
	KeyMask     []bool
	CuSeqlensQ  []int32
	CuSeqlensKV []int32
}

// ForwardHost is Forward on slices of the host. ForwardHost uploads the inputs in the formats of p,
// rounded to nearest even, computes on d, waits, and downloads O and LSE.
//
// The slices have the lengths of whole tensors,
//
//	Q    batch * num_heads * seq_q * head_dim
//	O    batch * num_heads * seq_q * value_dim
//	K    batch * num_kv_heads * seq_kv * head_dim
//	V    batch * num_kv_heads * seq_kv * value_dim
//	LSE  batch * num_heads * seq_q, or nil to leave it out
//
// with Varlen the lengths of packed tensors. O may be Q. Masks and rows that see no key are as in
// Forward.
//
// Every call allocates and transfers all tensors, at the speed of the bus. A program that calls
// often keeps its tensors on the device and calls Forward. ForwardHost is safe for concurrent use.
//
// The error names the slice whose length does not fit p, or the entry of CuSeqlensQ or CuSeqlensKV
// that breaks a rule. It wraps vk.ErrUnsupported where Forward's does, an error of Vulkan such as
// vk.ErrOutOfDeviceMemory, or ctx's error. O and LSE are undefined then, and nothing stays
// allocated.
func ForwardHost(ctx context.Context, d *vk.Device, t HostTensors, p Problem, opt Options) error {
	if err := Supports(d.Caps(), p, kit.Forward, opt); err != nil {
		return err
	}
	parts, slices := p.parts(), reflect.ValueOf(t)
	parts[4].on = t.LSE != nil
	for i, x := range parts {
		switch n, want := slices.Field(i).Len(), size(x.shape); {
		case x.on && n != want:
			return fmt.Errorf("attention: len(%s)=%d is not %d, of shape %v", x.name, n, want, x.shape)
		case !x.on && n > 0:
			return fmt.Errorf("attention: %s is given, but the problem has none", x.name)
		}
	}
	if p.Varlen.On {
		if err := p.CheckCuSeqlens(t.CuSeqlensQ, t.CuSeqlensKV); err != nil {
			return err
		}
	}
	return forwardHost(ctx, d, parts[:], slices, p, opt)
}

// forwardHost is ForwardHost for slices that fit the parts of p.
func forwardHost(ctx context.Context, d *vk.Device, parts []part, slices reflect.Value, p Problem, opt Options) (err error) {
	var on Tensors
	all := on.all()
	defer func() {
		for _, t := range all {
			t.Close()
		}
	}()
	for i, x := range parts {
		if x.on {
			if *all[i], err = d.NewTensor("attention."+x.name, x.dtype, x.shape...); err != nil {
				return err
			}
		}
	}
	for i, x := range parts {
		output := i == 3 || i == 4
		if !x.on || output && !p.Varlen.On { // rows that are in no sequence keep what O and LSE hold
			continue
		}
		switch data := slices.Field(i).Interface().(type) {
		case []float32:
			err = all[i].Upload(ctx, data)
		case []bool:
			err = all[i].UploadBools(ctx, data)
		case []int32:
			err = all[i].UploadInts(ctx, data)
		}
		if err != nil {
			return err
		}
	}
	if err := d.Run(ctx, "attention.ForwardHost", func(c *vk.Cmd) error { return Forward(c, on, p, opt) }); err != nil {
		return err
	}
	if err := on.O.Download(ctx, slices.Field(3).Interface().([]float32)); err != nil || !parts[4].on {
		return err
	}
	return on.LSE.Download(ctx, slices.Field(4).Interface().([]float32))
}
