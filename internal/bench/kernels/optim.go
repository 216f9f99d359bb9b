package kernels

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/pipelines/optim"
)

var _ = row(Kernel{}, &calls[*call.Optim]{
	name:   "optim",
	start:  newOptim,
	check:  checkOptim,
	file:   optimOfFile,
	shrink: func(o *call.Optim, _ [3]int) { o.Each = 1000 },
	derived: func(o *call.Optim) map[string]any {
		to := map[string]any{"parameters": o.Size(), "tensors": len(o.Sizes), "copy": "none", "max_norm": fmt.Sprint(o.MaxNorm)}
		if o.HasCopy {
			to["copy"] = o.Copy
		}
		return to
	},
})

// checkedElements are compared, at equal distances.
const checkedElements = 1 << 18

// newOptim returns a step of tensors in one buffer of each kind.
func newOptim() *call.Optim {
	return call.NewOptim(call.Optim{
		Problem: optim.Default(), Arena: true, Done: 9,
		Data:      call.Data{Magnitude: 0.01, Sample: checkedElements},
		OptimFile: call.OptimFile{AllDecay: true, NoStep: true, NoState: true, Strict: true},
	})
}

// maxTensors bounds --tensors, since the host describes each tensor.
const maxTensors = 100_000

// checkOptim checks what the package does not.
func checkOptim(o *call.Optim, _ *pflag.FlagSet) error {
	o.Copy, o.HasCopy = o.CopyTo.Or(dtype.Float32), o.CopyTo != 0
	switch {
	case o.HasCopy && o.Copy == dtype.Float32:
		return errors.New("optim: --copy float32 is not a format of 16 bits")
	case o.Names != nil:
		return nil
	case o.Count <= 0 || o.Count > maxTensors:
		return fmt.Errorf("optim: tensors=%d is not in 1..%d", o.Count, maxTensors)
	case o.Each <= 0 || o.Each > math.MaxInt32:
		return fmt.Errorf("optim: elements=%d is not in 1..%d", o.Each, math.MaxInt32)
	case o.Grad != dtype.Float32 && o.HasCopy && o.Grad != o.Copy:
		return fmt.Errorf("optim: --copy %v and --grad-dtype %v: formats of 16 bits are the same", o.Copy, o.Grad)
	}
	o.Sizes = slices.Repeat([]int{o.Each}, o.Count)
	return nil
}

// optimOfFile takes the parameters from a file.
func optimOfFile(s *Source, o *call.Optim) error {
	o.Sizes = nil
	for _, t := range s.list {
		name, found := strings.CutPrefix(t.Name, "param")
		if !found || name != "" && name[0] != '.' {
			continue
		}
		if t.DType != bench.FileDType(dtype.Float32) {
			return fmt.Errorf("tensor %q: dtype %s is not F32", t.Name, t.DType)
		}
		format, err := s.float("grad" + name)
		if err != nil {
			return err
		}
		if len(o.Names) > 0 && format != o.Grad {
			return fmt.Errorf("tensor %q: dtype %s, but %s of %q", "grad"+name, bench.FileDType(format), bench.FileDType(o.Grad), "grad"+o.Names[0])
		}
		if slices.Contains(t.Shape, 0) {
			return fmt.Errorf("tensor %q: shape %v is empty", t.Name, t.Shape)
		}
		o.Names, o.Shapes, o.Sizes, o.Grad = append(o.Names, name), append(o.Shapes, t.Shape), append(o.Sizes, call.Product(t.Shape)), format
	}
	if len(o.Names) == 0 {
		return errors.New(`there is no tensor "param" or "param.NAME"`)
	}
	o.Arena, o.Done, o.NoStep, o.NoState = false, 0, !s.has("step"), false
	return nil
}
