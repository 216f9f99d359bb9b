package conformance

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench/trial"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// TestKernels checks every entry on every path: in all formats, or where kernels take long to
// compile in formats with kernels of their own. Each is recorded twice, amid other memory, and each
// recording is submitted twice, from the same memory: all have the same bits. Together the entries run
// every module.
func TestKernels(t *testing.T) {
	d := vktest.Open(t, vktest.WholeBuffers, func(o *vk.Options) { o.PoisonScratch = trial.ScratchWord })
	ran, lack := map[string]bool{}, map[dtype.DType]error{}
	all := vktest.Thorough(d)
	for x := range All(d, all) {
		t.Run(x.Name, func(t *testing.T) {
			if strings.HasPrefix(x.Name, "attention-bwd") && strings.Contains(x.Name, "-packed") && !all && !chips.Quads(d.Caps()) {
				t.Skip("weights are not packed here: the entry without the word has the same kernels")
			}
			if err := call.Supports(x.Problem, d.Caps()); err != nil {
				require.ErrorIs(t, err, vk.ErrUnsupported)
				if !rare(x.Name) {
					lack[x.Format] = err
				}
				t.Skip(err)
			}
			modules, err := trial.Examine(context.Background(), d, x.Kernel, x.Problem, true, 10*time.Minute)
			require.NoError(t, err, trial.Encode(x.Kernel, x.Problem))
			for _, m := range modules {
				ran[m] = true
			}
		})
	}
	if t.Failed() {
		return
	}
	t.Run("modules", func(t *testing.T) {
		if err := lack[dtype.Float16]; err != nil {
			t.Skip("the device has not all kernels: ", err)
		}
		few := slices.DeleteFunc(missing(shaders.Variants(), ran, all, lack[dtype.BFloat16] == nil), func(name string) bool {
			decode := strings.HasPrefix(name, "attention_decode") && strings.Contains(name, "_coopmat.") && !strings.Contains(name, "_tiles_")
			return (decode || strings.HasPrefix(name, "attention_bwd_products_packed")) && !chips.Quads(d.Caps())
		})
		require.Empty(t, few, "no problem of the table runs them")
	})
}

// rare reports whether an entry is only for drivers with NVIDIA's matrix layout. Other devices may
// run all other entries.
func rare(name string) bool {
	return strings.HasPrefix(name, "step") && strings.HasSuffix(name, "/coopmat") || strings.HasPrefix(name, "attention-stripes/") || strings.HasPrefix(name, "decode-tiles")
}

// noKernels are modules that no function of the public packages runs.
var noKernels = []string{
	"matrix_layout.", "matrix_right.", // they find the device's matrix layouts, before kernels are chosen
	"micro_", // internal/bench: ceilings
	"poison", // trial.Runner
}

// missing returns the modules that did not run. With all formats each must have run; without,
// each in some format. Bfloat16 may be missing on devices that lack it.
func missing(variants []shaders.Variant, ran map[string]bool, all, bfloat16 bool) (names []string) {
	stems := map[string]bool{}
	for name := range ran {
		stem, _, _ := strings.Cut(name, ".")
		stems[stem] = true
	}
	for _, v := range variants {
		name := v.Name()
		stem, format, _ := strings.Cut(name, ".")
		switch {
		case slices.ContainsFunc(noKernels, func(p string) bool { return strings.HasPrefix(name, p) }):
		case !stems[stem], all && !ran[name] && (bfloat16 || format != dtype.BFloat16.Short()):
			names = append(names, name)
		}
	}
	return names
}

// TestMissing wants the name of a module that no entry runs.
func TestMissing(t *testing.T) {
	variants, ran := shaders.Variants(), map[string]bool{}
	for _, v := range variants {
		ran[v.Name()] = true
	}
	require.Empty(t, missing(variants, ran, true, true))
	delete(ran, "norm_bwd.bf16")
	require.Equal(t, []string{"norm_bwd.bf16"}, missing(variants, ran, true, true))
	require.Empty(t, missing(variants, ran, true, false))
	delete(ran, "gmm_merge")
	require.Equal(t, []string{"gmm_merge"}, missing(variants, ran, false, false))
}
