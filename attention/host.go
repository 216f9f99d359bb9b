package attention

import (
	"context"
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// ForwardHost is Forward on slices of the host's memory: it uploads q, k and v
// as p.DType, rounding to nearest even, computes on d, waits, and downloads o
// and lse.
//
// Slices hold whole tensors in row-major order of the shapes that Forward
// names,
//
//	q, o  batch * num_heads * seq_q * head_dim
//	k, v  batch * num_kv_heads * seq_kv * head_dim
//	lse   batch * num_heads * seq_q, or nil to leave it out
//
// and o may be q. Masks and rows that see no key are as in Forward.
//
// Every call allocates and transfers all five tensors, at the speed of the bus;
// programs that call often keep theirs on the device and call Forward. It is
// safe for concurrent use.
//
// It returns an error that names the slice whose length does not fit p, one
// that wraps ErrUnsupported as Forward does, one of Vulkan such as
// vk.ErrOutOfDeviceMemory, or ctx's. O and lse are undefined then. Nothing
// stays allocated.
func ForwardHost(ctx context.Context, d *vk.Device, o, lse, q, k, v []float32, p Problem, opt Options) error {
	if _, err := Choose(d.Caps(), p, opt); err != nil {
		return err
	}
	query := []int{p.Batch, p.NumHeads, p.SeqQ, p.HeadDim}
	key := []int{p.Batch, p.NumKVHeads, p.SeqKV, p.HeadDim}
	args := [...]hostTensor{
		{name: "o", data: o, dtype: p.DType, shape: query, rule: "batch*num_heads*seq_q*head_dim"},
		{name: "lse", data: lse, dtype: dtype.Float32, shape: query[:3], rule: "batch*num_heads*seq_q"},
		{name: "q", data: q, dtype: p.DType, shape: query, rule: "batch*num_heads*seq_q*head_dim"},
		{name: "k", data: k, dtype: p.DType, shape: key, rule: "batch*num_kv_heads*seq_kv*head_dim"},
		{name: "v", data: v, dtype: p.DType, shape: key, rule: "batch*num_kv_heads*seq_kv*head_dim"},
	}
	for i := range args {
		if err := args[i].check(); err != nil {
			return err
		}
	}
	var t [len(args)]vk.Tensor
	for i := range args {
		a := &args[i]
		if a.absent() {
			continue
		}
		var err error
		if t[i], err = d.NewTensor("attention."+a.name, a.dtype, a.shape...); err != nil {
			return fmt.Errorf("attention: %w", err)
		}
		defer t[i].Close()
	}
	for i := 2; i < len(args); i++ {
		if err := t[i].Upload(ctx, args[i].data); err != nil {
			return fmt.Errorf("attention: %w", err)
		}
	}
	c, err := d.NewCmd("attention.ForwardHost")
	if err != nil {
		return fmt.Errorf("attention: %w", err)
	}
	defer c.Close()
	if err := Forward(c, t[0], t[1], t[2], t[3], t[4], p, opt); err != nil {
		return err
	}
	if err := c.Submit(ctx); err != nil {
		return fmt.Errorf("attention: %w", err)
	}
	for i := range 2 {
		if args[i].absent() {
			continue
		}
		if err := t[i].Download(ctx, args[i].data); err != nil {
			return fmt.Errorf("attention: %w", err)
		}
	}
	return nil
}

// A hostTensor is an argument of ForwardHost.
type hostTensor struct {
	name  string
	data  []float32
	dtype dtype.DType
	shape []int
	rule  string // how the length follows from the problem
}

// absent reports whether the caller left the tensor out.
func (h *hostTensor) absent() bool { return h.name == "lse" && h.data == nil }

// check compares the length with the shape.
func (h *hostTensor) check() error {
	want := 1
	for _, n := range h.shape {
		want *= n
	}
	if len(h.data) != want && !h.absent() {
		return fmt.Errorf("attention: len(%s)=%d is not %s=%d", h.name, len(h.data), h.rule, want)
	}
	return nil
}
