package attention

import (
	"context"
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// HostTensors are Tensors on the host, for ForwardHost: whole tensors of the same shapes in
// row-major order. Tensors of features that are off are nil; LSE may be nil.
type HostTensors struct {
	Q, K, V, O, LSE []float32

	Bias        []float32
	ALiBiSlopes []float32
	Sinks       []float32
	KeyMask     []bool
	CuSeqlensQ  []int32
	CuSeqlensKV []int32
}

// ForwardHost is Forward on slices of the host. It uploads the inputs in the formats of p, rounded
// to nearest even, computes on d, waits, and downloads O and LSE.
//
// The slices have the lengths of whole tensors,
//
//	Q    batch * num_heads * seq_q * head_dim
//	O    batch * num_heads * seq_q * value_dim
//	K    batch * num_kv_heads * seq_kv * head_dim
//	V    batch * num_kv_heads * seq_kv * value_dim
//	LSE  batch * num_heads * seq_q, or nil to leave it out
//
// with Varlen those of packed tensors. O may be Q. Masks and rows that see no key are as in
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
	if _, err := chooseForward(d.Caps(), p, opt); err != nil {
		return err
	}
	args := hostArguments(&t, &p)
	for i := range args {
		if err := args[i].check(); err != nil {
			return err
		}
	}
	outputs := 2
	if p.Varlen.On {
		if err := p.CheckCuSeqlens(t.CuSeqlensQ, t.CuSeqlensKV); err != nil {
			return err
		}
		outputs = 0 // rows that are in no sequence keep what O and LSE hold
	}
	defer func() {
		for i := range args {
			args[i].tensor.Close()
		}
	}()
	for i := range args {
		if err := args[i].allocate(d); err != nil {
			return err
		}
	}
	for i := outputs; i < len(args); i++ {
		if err := args[i].upload(ctx); err != nil {
			return fmt.Errorf("attention: %w", err)
		}
	}
	if err := args.forward(ctx, d, p, opt); err != nil {
		return err
	}
	for i := range args[:2] {
		if !args[i].present {
			continue
		}
		if err := args[i].tensor.Download(ctx, args[i].data); err != nil {
			return fmt.Errorf("attention: %w", err)
		}
	}
	return nil
}

// hostArgs are the arguments of ForwardHost: O, LSE, Q, K, V, and the features'.
type hostArgs [11]hostTensor

func hostArguments(t *HostTensors, p *Problem) hostArgs {
	return hostArgs{
		floats("o", true, t.O, p.DType, p.OShape()),
		floats("lse", t.LSE != nil, t.LSE, dtype.Float32, p.LSEShape()),
		floats("q", true, t.Q, p.DType, p.QShape()),
		floats("k", true, t.K, p.DType, p.KShape()),
		floats("v", true, t.V, p.DType, p.VShape()),
		floats("bias", p.Bias.On, t.Bias, p.Bias.DType, p.BiasShape()),
		floats("alibi_slopes", p.ALiBi != ALiBiOff, t.ALiBiSlopes, dtype.Float32, p.SlopesShape()),
		floats("sinks", p.Sinks, t.Sinks, dtype.Float32, p.SinksShape()),
		bools("key_mask", p.KeyMask, t.KeyMask, p.KeyMaskShape()),
		lengths("cu_seqlens_q", p.Varlen.On, t.CuSeqlensQ, p.CuSeqlensShape()),
		lengths("cu_seqlens_kv", p.Varlen.On, t.CuSeqlensKV, p.CuSeqlensShape()),
	}
}

// forward computes on the device.
func (args *hostArgs) forward(ctx context.Context, d *vk.Device, p Problem, opt Options) error {
	on := Tensors{
		O: args[0].tensor, LSE: args[1].tensor, Q: args[2].tensor, K: args[3].tensor, V: args[4].tensor,
		Bias: args[5].tensor, ALiBiSlopes: args[6].tensor, Sinks: args[7].tensor, KeyMask: args[8].tensor,
		CuSeqlensQ: args[9].tensor, CuSeqlensKV: args[10].tensor,
	}
	c, err := d.NewCmd("attention.ForwardHost")
	if err != nil {
		return fmt.Errorf("attention: %w", err)
	}
	defer c.Close()
	if err := Forward(c, on, p, opt); err != nil {
		return err
	}
	if err := c.Submit(ctx); err != nil {
		return fmt.Errorf("attention: %w", err)
	}
	return nil
}

// A hostTensor is an argument of ForwardHost.
type hostTensor struct {
	name    string
	present bool
	length  int                                    // elements that are given
	data    []float32                              // of numbers: where a result goes
	store   func(context.Context, vk.Tensor) error // uploads them
	dtype   dtype.DType
	shape   []int
	tensor  vk.Tensor // on the device
}

func floats(name string, present bool, data []float32, format dtype.DType, shape []int) hostTensor {
	store := func(ctx context.Context, t vk.Tensor) error { return t.Upload(ctx, data) }
	return hostTensor{name: name, present: present, length: len(data), data: data, store: store, dtype: format, shape: shape}
}

func bools(name string, present bool, data []bool, shape []int) hostTensor {
	store := func(ctx context.Context, t vk.Tensor) error { return t.UploadBools(ctx, data) }
	return hostTensor{name: name, present: present, length: len(data), store: store, dtype: dtype.Bool, shape: shape}
}

func lengths(name string, present bool, data []int32, shape []int) hostTensor {
	store := func(ctx context.Context, t vk.Tensor) error { return t.UploadInts(ctx, data) }
	return hostTensor{name: name, present: present, length: len(data), store: store, dtype: dtype.Int32, shape: shape}
}

// check compares the length with the shape.
func (h *hostTensor) check() error {
	if !h.present {
		if h.length > 0 {
			return fmt.Errorf("attention: %s is given, but the problem has none", h.name)
		}
		return nil
	}
	want := 1
	for _, n := range h.shape {
		want *= n
	}
	if h.length != want {
		return fmt.Errorf("attention: len(%s)=%d is not %d, of shape %v", h.name, h.length, want, h.shape)
	}
	return nil
}

func (h *hostTensor) allocate(d *vk.Device) (err error) {
	if !h.present {
		return nil
	}
	if h.tensor, err = d.NewTensor("attention."+h.name, h.dtype, h.shape...); err != nil {
		return fmt.Errorf("attention: %w", err)
	}
	return nil
}

func (h *hostTensor) upload(ctx context.Context) error {
	if !h.present {
		return nil
	}
	return h.store(ctx, h.tensor)
}
