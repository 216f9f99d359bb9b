package main

import (
	"strings"
	"testing"

	"github.com/flashvk/flashvk/internal/conformance"
	"github.com/flashvk/flashvk/vk"
)

// TestRun gives it records of a GPU that ran one module of two.
func TestRun(t *testing.T) {
	one, two := strings.Repeat("1", 64), strings.Repeat("2", 64)
	r := conformance.New(&vk.Caps{Name: "NVIDIA H200", Type: vk.DiscreteGPU, DriverInfo: "580.159.04"})
	r.Add(conformance.Module{Name: "a", SHA256: one, Fixed: 1})
	r.Add(conformance.Module{Name: "b", SHA256: one, Fixed: 1})
	records := []*conformance.Record{r}
	var out strings.Builder
	if code := run(&out, records, []conformance.Committed{{Name: "a", SHA256: one}, {Name: "b", SHA256: one}}); code != 0 || out.Len() > 0 {
		t.Errorf("all is proven: exit status %d, %q", code, &out)
	}
	code := run(&out, records, []conformance.Committed{{Name: "a", SHA256: one}, {Name: "b", SHA256: two}, {Name: "c", SHA256: one}})
	if want := "b: the record of NVIDIA H200 has an older hash\nc: no record\n"; code != 1 || out.String() != want {
		t.Errorf("exit status %d, %q, want 1, %q", code, &out, want)
	}
}
