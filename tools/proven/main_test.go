package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
	require.Zero(t, run(&out, records, []conformance.Committed{{Name: "a", SHA256: one}, {Name: "b", SHA256: one}}))
	require.Empty(t, out.String())
	require.Equal(t, 1, run(&out, records, []conformance.Committed{{Name: "a", SHA256: one}, {Name: "b", SHA256: two}, {Name: "c", SHA256: one}}))
	require.Equal(t, "b: the record of NVIDIA H200 has an older hash\nc: no record\n", out.String())
}
