package vk_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// TestModules wants each module once, whatever it was specialized to, those of this
// recording only.
func TestModules(t *testing.T) {
	d := vktest.Open(t)
	x, y := tensor(t, d, "x", 1, 2), tensor(t, d, "y", 3, 4)
	c := newCmd(t, d)
	check := func(when string, want ...string) {
		t.Helper()
		var got []string
		for _, m := range c.Modules() {
			if !bytes.Equal(m.SPIRV, axpySPIRV) {
				t.Errorf("%s: %s has other SPIR-V", when, m.Name)
			}
			got = append(got, m.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: modules are %q, want %q", when, got, want)
		}
	}
	check("at first")
	twice, err := vk.CachedKernel[axpyParams](d, "axpy", axpySPIRV, axpySpec{Scale: 2}, vk.KernelOptions{})
	if err != nil {
		t.Fatal(err)
	}
	other, err := vk.NewKernel[axpyParams](d, "another", axpySPIRV, axpySpec{Scale: 1}, vk.KernelOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	for _, k := range []*vk.Kernel[axpyParams]{axpy(t, d), twice, other, axpy(t, d)} {
		k.Dispatch(c, vk.Groups{}, axpyParams{N: 2, A: 1}, x, y)
	}
	check("recorded", "another", "axpy")
	if err := c.Submit(background()); err != nil {
		t.Fatal(err)
	}
	check("submitted", "another", "axpy")
	c.Reset()
	check("after Reset")
}
