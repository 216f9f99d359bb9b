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

// optimizer is the row of optim.
func optimizer() Kernel {
	k := calls[*call.Optim]{
		name: "optim",
		flags: []flag{
			{name: "lr", usage: "learning rate"},
			{name: "beta1", usage: "decay rate of the first moment"},
			{name: "beta2", usage: "decay rate of the second moment"},
			{name: "eps", usage: "added to the root of the second moment"},
			{name: "weight-decay", usage: "decoupled weight decay, times lr"},
			{name: "max-norm", usage: "clip the gradients to this norm; 0 is no clipping, inf only looks for gradients that are not finite"},
			{name: "copy", field: "copy_to", usage: "also write the parameters in this format: float16 or bfloat16"},
			{name: "tensors", field: "count", usage: "parameter tensors", size: true},
			{name: "elements", field: "each", usage: "elements of each (default 698880 on a GPU, 5000 on a CPU device)", size: true},
			{name: "grad-dtype", field: "grad", usage: "format of the gradients: float32 (default), float16 or bfloat16", size: true},
		},
		base: func(cpu bool) *call.Optim {
			if cpu {
				return newOptim(5000)
			}
			return newOptim(512 * 1365)
		},
		check:  checkOptim,
		file:   optimOfFile,
		cases:  []string{"--tensors=60", "--copy=bfloat16", "--copy=bfloat16 --grad-dtype=bfloat16 --max-norm=1"},
		shrink: func(o *call.Optim) { o.Each = 1000 },
		keys:   "parameters tensors grad_dtype copy max_norm lr beta1 beta2 eps weight_decay",
		derived: func(o *call.Optim) map[string]any {
			to := map[string]any{"parameters": o.Size(), "tensors": len(o.Sizes), "copy": "none", "max_norm": fmt.Sprint(o.MaxNorm)}
			if o.HasCopy {
				to["copy"] = o.Copy
			}
			return to
		},
	}
	return Kernel{
		Name: "optim", Title: "a step of AdamW", Impls: []string{"auto"}, New: k.New,
		Fixed: "its pieces of 4096 elements are the same on every device",
		Formulas: `
    norm  = sqrt(sum of grad² over all tensors)
    g     = grad * min(1, max_norm / norm)            with --max-norm
    m     = beta1 * m + (1 - beta1) * g
    v     = beta2 * v + (1 - beta2) * g²
    param = param * (1 - lr * weight_decay) - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
    copy  = param, rounded                            with --copy`,
		About: `Many tensors lie in one buffer of each kind. The rate counts memory traffic: 28 bytes
for each parameter with float32 gradients, 4 more for the norm, 2 more for a copy.`,
		Files: `
    for each NAME param.NAME, m.NAME, v.NAME, F32, of one shape, and grad.NAME, F32, F16 or BF16; or
    without NAME; step (1), I32: the number of steps so far; t is one more, or 1 if it is missing
    written: param.NAME, m.NAME, v.NAME; step, if there is one; copy.NAME, with --copy; norm (1), F32,
    the norm of all gradients, with --max-norm
With --max-norm the step is skipped, with a warning, if a gradient is not finite, or if the
norm is 1.8e19 or more: float32 does not hold its square. Everything stays as it was.`,
		Examples: []string{
			"bench --max-norm 1 --copy bfloat16",
			`bench --suite training --peer torch="python3 tools/peers/torch_train.py"`,
			"run --in model.safetensors --out model.safetensors --lr 1e-4 --max-norm 1 --copy bfloat16",
			"sweep --tensors 1..64x4 --csv optim.csv",
		},
	}
}

// checkedElements are compared, at equal distances.
const checkedElements = 1 << 18

// newOptim returns a step of 60 tensors in one buffer of each kind.
func newOptim(elements int) *call.Optim {
	return call.NewOptim(call.Optim{
		Problem: optim.Default(), Sizes: slices.Repeat([]int{elements}, 60), Arena: true, Done: 9,
		Data:      call.Data{Magnitude: 0.01, Sample: checkedElements},
		OptimFile: call.OptimFile{Count: 60, Each: elements, AllDecay: true, NoStep: true, NoState: true, Strict: true},
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
