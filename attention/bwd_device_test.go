package attention_test

import (
	"testing"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/attention/ondevice"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// backwardOnDevice runs attention.Backward for the suite.
type backwardOnDevice struct {
	d   *vk.Device
	opt attention.Options
}

func (b backwardOnDevice) Supports(p attention.Problem) error {
	plan, err := attention.Choose(b.d.Caps(), p, kit.Backward, b.opt)
	if err != nil || !software(b.d) {
		return err
	}
	most, config := 40, plan.Backward
	switch {
	case p.DType == dtype.Float32 && config.Impl == attention.CoopMat:
		most = 16
	case p.DType == dtype.Float32 && p.Plain():
		most = 24
	case p.DType == dtype.Float16 && p.Plain() && config.Impl == attention.CoopMat2:
		most = 72
	}
	if !vktest.Thorough(b.d) && p.Plain() {
		most = 24
		if p.DType == dtype.Float32 {
			most = 8
		}
	}
	if err := widerHeads(b.d, config.Impl, p, most); err != nil {
		return err
	}
	return fewerFeatures(config.Impl, takesAlone(b.d, b.opt.BackwardConfig != nil, kit.Backward), p)
}

// Backward implements attntest.Backwarder.
func (b backwardOnDevice) Backward(g attntest.Gradients, in attntest.BackwardInputs, p attention.Problem) error {
	k := ondevice.Kernel{Device: guard.Device{Device: b.d}, Options: b.opt}
	return k.Backward(g, in, p)
}

// backwardSuite returns the cases for the device, as suite does.
func backwardSuite(d *vk.Device) *attntest.BackwardSuite { return backwardSuites[setOf(d)] }

var backwardSuites = [...]*attntest.BackwardSuite{
	attntest.Short: attntest.NewBackwardSuite(attntest.Short, attntest.BackwardReference, attntest.PlainGradients),
	attntest.Full:  attntest.NewBackwardSuite(attntest.Full, attntest.BackwardReference, attntest.PlainGradients),
}

// TestBackward runs the suite on every path of the device.
func TestBackward(t *testing.T) {
	for _, impl := range attention.Impls() {
		t.Run(impl.String(), func(t *testing.T) {
			t.Parallel() // lavapipe compiles on one core
			d := vktest.Open(t, vktest.WholeBuffers)
			vktest.Require(t, impl.String(), pathError(d.Caps(), impl))
			f := backwardOnDevice{d, attention.Options{Impl: impl}}
			attntest.TestBackward(t, suiteStandIns(d, impl, backwardSuite(d), f.Supports), f)
		})
	}
}
