package attention_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/attention/attntest"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/vktest"
)

// onDevice runs attention.Forward for the suite.
type onDevice struct {
	d   *vk.Device
	opt attention.Options
}

func (f onDevice) Supports(p attention.Problem) error {
	_, err := attention.Choose(f.d.Caps(), p, f.opt)
	return err
}

// Forward uploads the whole backing slice of every tensor, dispatches, and
// downloads all of it, so that the suite sees stray writes.
func (f onDevice) Forward(o, lse, q, k, v *attntest.Tensor, p attention.Problem) error {
	ctx := context.Background()
	tensors := []*attntest.Tensor{o, lse, q, k, v}
	views := make([]vk.Tensor, len(tensors))
	for i, t := range tensors {
		if t == nil {
			continue
		}
		data := t.Encode()
		b, err := f.d.NewBuffer(t.Name, int64(len(data)))
		if err != nil {
			return err
		}
		defer b.Close()
		if err := b.Upload(ctx, 0, data); err != nil {
			return err
		}
		views[i] = vk.Tensor{Buffer: b, DType: t.DType, Shape: t.Shape, Strides: t.Strides, Offset: t.Offset}
	}
	c, err := f.d.NewCmd("suite")
	if err != nil {
		return err
	}
	defer c.Close()
	if err := attention.Forward(c, views[0], views[1], views[2], views[3], views[4], p, f.opt); err != nil {
		return err
	}
	if err := c.Submit(ctx); err != nil {
		return err
	}
	for i, t := range tensors {
		if t == nil {
			continue
		}
		data := make([]byte, views[i].Buffer.Bytes())
		if err := views[i].Buffer.Download(ctx, 0, data); err != nil {
			return err
		}
		t.Decode(data[:len(t.Data)*t.DType.Size()])
	}
	return nil
}

// suite returns the cases for the device: a software driver gets the short
// set. Its expectations are shared by all tests of the package.
func suite(d *vk.Device) *attntest.Suite {
	if d.Caps().Type == vk.CPU {
		return shortSuite
	}
	return fullSuite
}

var (
	shortSuite = attntest.NewSuite(attntest.Short, attntest.Reference, attntest.TwicePlain)
	fullSuite  = attntest.NewSuite(attntest.Full, attntest.Reference, attntest.TwicePlain)
)

// TestForward runs the suite on every path of the device.
func TestForward(t *testing.T) {
	for _, impl := range attention.Impls() {
		t.Run(impl.String(), func(t *testing.T) {
			d := vktest.Open(t)
			vktest.Require(t, impl.String(), pathError(d.Caps(), impl))
			suite(d).TestForward(t, onDevice{d, attention.Options{Impl: impl}})
		})
	}
}

// pathError returns nil if a path runs on the device at all: for one of the
// storage types.
func pathError(caps *vk.Caps, impl attention.Impl) error {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 1, HeadDim: 64}
	var err error
	for _, p.DType = range dtype.All() {
		if err = attention.Supports(caps, impl, p); err == nil {
			return nil
		}
	}
	return err
}

// TestConfigs runs small problems on configurations that the tuning table does
// not take on this device: one and several row tiles of a subgroup, keys that
// wait in registers, one loop and two, matrix layouts that are not known.
func TestConfigs(t *testing.T) {
	d := vktest.Open(t)
	small := suite(d).Where(func(c *attntest.Case) bool {
		p := c.Problem
		return p.HeadDim <= 24 && float64(p.SeqQ)*float64(p.SeqKV) < 1e5
	})
	for _, config := range []attention.Config{
		{Impl: attention.CoopMat2, Subgroups: 1, RowTiles: 1, BlockN: 16, SplitLoop: true},
		{Impl: attention.CoopMat2, Subgroups: 2, RowTiles: 2, BlockN: 32, Prefetch: true, SplitLoop: true},
		{Impl: attention.CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 16, Prefetch: true},
		{Impl: attention.CoopMat2, Subgroups: 2, RowTiles: 1, BlockN: 16, Detour: true},
		{Impl: attention.CoopMat, Subgroups: 2, RowTiles: 2, BlockN: 32, SplitLoop: true},
		{Impl: attention.CoopMat, Subgroups: 4, RowTiles: 1, BlockN: 32, Prefetch: true, Detour: true},
		{Impl: attention.Scalar, Threads: 64, ThreadsX: 8, BlockM: 16, BlockN: 16, Depth: 8, ValueRows: 4},
		{Impl: attention.Scalar, Threads: 128, ThreadsX: 16, BlockM: 32, BlockN: 64, Depth: 16, ValueRows: 16},
	} {
		t.Run(config.String(), func(t *testing.T) {
			vktest.Require(t, config.Impl.String(), pathError(d.Caps(), config.Impl))
			small.TestForward(t, onDevice{d, attention.Options{Config: &config}})
		})
	}
}

// ExampleForward computes attention of two heads over device tensors.
func ExampleForward() {
	ctx := context.Background()
	d, err := vk.Open(vk.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	p := attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 1, SeqQ: 3, SeqKV: 5, HeadDim: 8, Causal: true}
	var t [4]vk.Tensor // o, q, k, v
	for i, shape := range [][]int{{1, 2, 3, 8}, {1, 2, 3, 8}, {1, 1, 5, 8}, {1, 1, 5, 8}} {
		if t[i], err = d.NewTensor("oqkv"[i:i+1], p.DType, shape...); err != nil {
			fmt.Println(err)
			return
		}
		defer t[i].Close()
	}
	q, k, v := make([]float32, 2*3*8), make([]float32, 5*8), make([]float32, 5*8)
	for j := range v {
		v[j] = float32(j / 8) // value j is the vector (j, j, ...)
	}
	for i, data := range [][]float32{q, k, v} {
		if err := t[i+1].Upload(ctx, data); err != nil {
			fmt.Println(err)
			return
		}
	}

	c, err := d.NewCmd("example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	if err := attention.Forward(c, t[0], vk.Tensor{}, t[1], t[2], t[3], p, attention.Options{}); err != nil {
		fmt.Println(err)
		return
	}
	if err := c.Submit(ctx); err != nil {
		fmt.Println(err)
		return
	}

	o := make([]float32, 2*3*8)
	if err := t[0].Download(ctx, o); err != nil {
		fmt.Println(err)
		return
	}
	// Q is zero, so each row of O is the mean of the values that it sees.
	fmt.Println(o[0], o[8], o[16])
	// Output: 1 1.5 2
}
