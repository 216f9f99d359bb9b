package optim

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// chunkElements is the size of a piece: 16 elements for each invocation of a workgroup. The table
// is small then, and little is lost in the pieces of small tensors.
const chunkElements = 4096

// chunk is Chunk of shaders/lib/adamw.glsl. Its offsets are in elements.
type chunk struct {
	Param, Grad, M, V, Copy, Count, Flags, Unused uint32
}

// Flags of a chunk.
const (
	chunkAligned = 1
	chunkDecays  = 2
	chunkBytes   = 32
)

// launchChunks divides the first chunk of a launch. The sums of launchChunks chunks are 256 bytes,
// so the sums of a launch are a slice on every device. Chunks between launches have no elements,
// and sums of 0.
const launchChunks = 64

// A launch is one run of the kernels over pieces whose tensors lie in the same buffers.
type launch struct {
	launchKey
	first, count int // chunks
	elements     int
}

// launchKey has the values that the tensors of a launch have in common.
type launchKey struct {
	param, grad, m, v, copyTo *vk.Buffer  // copyTo is nil if there is no copy
	format                    dtype.DType // the 16-bit format, where there is one
	grad16                    bool
}

// gradSize returns the bytes of an element of the gradients.
func (k *launchKey) gradSize() float64 {
	if k.grad16 {
		return 2
	}
	return 4
}

func keyOf(p *Param) launchKey {
	k := launchKey{
		param: p.Param.Buffer, grad: p.Grad.Buffer, m: p.M.Buffer, v: p.V.Buffer, copyTo: p.Copy.Buffer,
		format: dtype.BFloat16, grad16: p.Grad.DType != dtype.Float32,
	}
	switch {
	case k.grad16:
		k.format = p.Grad.DType
	case k.copyTo != nil:
		k.format = p.Copy.DType
	}
	return k
}

// plan divides the parameters into pieces. The pieces of a launch lie together.
func plan(params []Param) (launches []launch, table []chunk) {
	groups := map[launchKey][]*Param{}
	var order []launchKey
	for i := range params {
		k := keyOf(&params[i])
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], &params[i])
	}
	for _, k := range order {
		for len(table)%launchChunks != 0 {
			table = append(table, chunk{})
		}
		l := launch{launchKey: k, first: len(table)}
		for _, p := range groups[k] {
			table = appendChunks(table, p)
			l.elements += p.Param.NumElements()
		}
		l.count = len(table) - l.first
		launches = append(launches, l)
	}
	return launches, table
}

func appendChunks(table []chunk, p *Param) []chunk {
	var flags uint32
	if p.Param.Offset%4+p.Grad.Offset%4+p.M.Offset%4+p.V.Offset%4+p.Copy.Offset%4 == 0 {
		flags |= chunkAligned
	}
	if !p.NoDecay {
		flags |= chunkDecays
	}
	n := p.Param.NumElements()
	for at := 0; at < n; at += chunkElements {
		table = append(table, chunk{
			Param: uint32(p.Param.Offset + at), Grad: uint32(p.Grad.Offset + at), M: uint32(p.M.Offset + at), V: uint32(p.V.Offset + at),
			Copy: uint32(p.Copy.Offset + at), Count: uint32(min(chunkElements, n-at)), Flags: flags,
		})
	}
	return table
}

// An extent is where a tensor lies.
type extent struct {
	name       string
	written    bool
	buffer     *vk.Buffer
	start, end int64 // bytes
}

// check returns an error that names the first tensor that does not fit, or shares memory with one
// that is written.
func check(params []Param) error {
	if len(params) == 0 {
		return fmt.Errorf("optim: there are no parameters")
	}
	var extents []extent
	for i := range params {
		p := &params[i]
		list, err := p.check()
		if err != nil {
			return fmt.Errorf("optim: parameter %q: %w", p.Name, err)
		}
		extents = append(extents, list...)
	}
	order := map[*vk.Buffer]int{}
	for _, e := range extents {
		if _, ok := order[e.buffer]; !ok {
			order[e.buffer] = len(order)
		}
	}
	slices.SortStableFunc(extents, func(a, b extent) int {
		return cmp.Or(cmp.Compare(order[a.buffer], order[b.buffer]), cmp.Compare(a.start, b.start))
	})
	// The tensors that reach farthest: of all, and of the written ones.
	var far, farWritten extent
	for _, e := range extents {
		if e.buffer != far.buffer {
			far, farWritten = extent{}, extent{}
		}
		if e.start < farWritten.end {
			return fmt.Errorf("optim: %s overlaps %s, which is written", e.name, farWritten.name)
		}
		if e.written && e.start < far.end {
			return fmt.Errorf("optim: %s overlaps %s, which is written", far.name, e.name)
		}
		if e.end > far.end {
			far = e
		}
		if e.written && e.end > farWritten.end {
			farWritten = e
		}
	}
	return nil
}

func (p *Param) check() (list []extent, err error) {
	for _, t := range []struct {
		name    string
		x       *vk.Tensor
		formats []dtype.DType
		written bool
	}{
		{"param", &p.Param, []dtype.DType{dtype.Float32}, true},
		{"grad", &p.Grad, dtype.All(), false},
		{"m", &p.M, []dtype.DType{dtype.Float32}, true},
		{"v", &p.V, []dtype.DType{dtype.Float32}, true},
		{"copy", &p.Copy, []dtype.DType{dtype.Float16, dtype.BFloat16}, true},
	} {
		if t.name == "copy" && t.x.IsZero() {
			continue
		}
		switch {
		case t.x.IsZero():
			return nil, fmt.Errorf("%s has no buffer", t.name)
		case !slices.Contains(t.formats, t.x.DType):
			return nil, fmt.Errorf("%s is %v, want %v", t.name, t.x.DType, t.formats)
		case !slices.Equal(t.x.Shape, p.Param.Shape):
			return nil, fmt.Errorf("%s has shape %v, want %v, the shape of param", t.name, t.x.Shape, p.Param.Shape)
		}
		if err := t.x.Validate(); err != nil {
			return nil, fmt.Errorf("%s: %w", t.name, err)
		}
		if !t.x.Contiguous() {
			return nil, fmt.Errorf("%s has strides %v: it is not contiguous", t.name, t.x.Strides)
		}
		buffer, start, end := t.x.Memory()
		list = append(list, extent{fmt.Sprintf("%s of parameter %q", t.name, p.Name), t.written, buffer, start, end})
	}
	if g := p.Grad.DType; g != dtype.Float32 && !p.Copy.IsZero() && p.Copy.DType != g {
		return nil, fmt.Errorf("copy is %v, but grad is %v: formats of 16 bits are the same", p.Copy.DType, g)
	}
	return list, nil
}

// A Problem holds the constants of AdamW, and the learning rate that it begins with.
type Problem struct {
	LR           float64 // positive; AdamW.SetLR changes it, also of steps that are recorded
	Beta1, Beta2 float64 // in [0, 1)
	Eps          float64 // positive
	WeightDecay  float64 // not negative
	// MaxNorm clips gradients: if their norm is larger, they are multiplied by MaxNorm/norm. With
	// 0 nothing is clipped, and the norm is not computed. With +Inf the norm is computed and
	// nothing is clipped. Every MaxNorm but 0 skips a step with a gradient that is not finite.
	MaxNorm float64
}

// Default returns the defaults of PyTorch: learning rate 1e-3, betas 0.9 and 0.999, eps 1e-8,
// weight decay 0.01, no clipping.
func Default() Problem {
	return Problem{LR: 1e-3, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01}
}

// Validate returns an error that names the first constant that is out of its range.
func (p Problem) Validate() error {
	in := func(x, least, most float64) bool { return x >= least && x < most } // false for NaN
	switch {
	case !in(p.LR, 0x1p-126, math.MaxFloat32):
		return fmt.Errorf("optim: lr=%g is not a positive float32", p.LR)
	case !in(p.Beta1, 0, 1):
		return fmt.Errorf("optim: beta1=%g is not in [0, 1)", p.Beta1)
	case !in(p.Beta2, 0, 1):
		return fmt.Errorf("optim: beta2=%g is not in [0, 1)", p.Beta2)
	case !in(p.Eps, 0x1p-126, math.MaxFloat32):
		return fmt.Errorf("optim: eps=%g is not a positive float32", p.Eps)
	case !in(p.WeightDecay, 0, math.MaxFloat32):
		return fmt.Errorf("optim: weight_decay=%g is not a finite number from 0 on", p.WeightDecay)
	case !(p.MaxNorm >= 0):
		return fmt.Errorf("optim: max_norm=%g is negative", p.MaxNorm)
	}
	return nil
}
