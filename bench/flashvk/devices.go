package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func newDevices(a *app) *cobra.Command {
	var asJSON bool
	return a.command(&cobra.Command{
		Use:   "devices",
		Short: "List the Vulkan devices and what runs on them",
		Long: `Lists every Vulkan device with its driver, limits and matrix shapes, and for
each path of attention the formats that it takes there, or why it takes none.
The paths are asked about headdim 64, 128 and 256.`,
		Example: `  flashvk devices
  flashvk devices --json`,
	}, func(f *pflag.FlagSet) {
		f.BoolVar(&asJSON, "json", false, "everything that is known, as JSON")
	}, func(context.Context) error {
		list, err := vk.List()
		switch {
		case err != nil:
			return err
		case asJSON:
			return writeDevicesJSON(a.stdout, list)
		}
		var b strings.Builder
		for i := range list {
			if i > 0 {
				b.WriteByte('\n')
			}
			describeDevice(&b, &list[i])
		}
		_, err = io.WriteString(a.stdout, b.String())
		return err
	})
}

// A pathSupport says whether a path takes a problem on a device.
type pathSupport struct {
	Impl      string `json:"impl"`
	DType     string `json:"dtype"`
	HeadDim   int    `json:"head_dim"`
	Supported bool   `json:"supported"`
	Choice    string `json:"choice,omitempty"` // path and configuration of the built-in table
	Reason    string `json:"reason,omitempty"` // why not
}

// headDims are asked of each path: the common sizes and the largest.
var headDims = []int{64, 128, 256}

// formatsAsked are the formats in the order of the documentation.
var formatsAsked = []dtype.DType{dtype.Float16, dtype.BFloat16, dtype.Float32}

// support asks a path about a problem of typical size.
func support(caps *vk.Caps, impl attention.Impl, t dtype.DType, headDim int) pathSupport {
	p := attention.Problem{Batch: 1, NumHeads: 8, NumKVHeads: 8, SeqQ: 1024, SeqKV: 1024, HeadDim: headDim, DType: t}
	s := pathSupport{Impl: impl.String(), DType: t.String(), HeadDim: headDim}
	if caps.Unusable != "" {
		s.Reason = caps.Unusable
		return s
	}
	choice, err := attention.Choose(caps, p, kit.Forward, attention.Options{Impl: impl})
	if err != nil {
		s.Reason = bench.Reason("attention", impl.String(), err)
		return s
	}
	s.Supported, s.Choice = true, choice.String()
	return s
}

// writeDevicesJSON writes a document with a list of objects, each the capabilities of a
// device and its paths.
func writeDevicesJSON(w io.Writer, list []vk.Caps) error {
	type device struct {
		vk.Caps
		Paths []pathSupport
	}
	devices := make([]device, len(list))
	for i := range list {
		devices[i].Caps = list[i]
		for _, impl := range append([]attention.Impl{attention.Auto}, attention.Impls()...) {
			for _, t := range formatsAsked {
				for _, d := range headDims {
					devices[i].Paths = append(devices[i].Paths, support(&list[i], impl, t, d))
				}
			}
		}
	}
	return bench.WriteDocument(w, "devices", time.Now(), map[string]any{"devices": devices})
}

func describeDevice(b *strings.Builder, c *vk.Caps) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(b, "   %-10s %s\n", name, fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(b, "%d  %s (%v)\n", c.Index, c.Name, c.Type)
	if c.Unusable != "" {
		line("unusable", "%s", c.Unusable)
	}
	line("driver", "%s", driver(c))
	line("subgroup", "%s", subgroup(c))
	line("workgroup", "%d invocations, %s shared memory", c.MaxWorkgroupInvocations, bench.FormatBytes(uint64(c.MaxSharedMemoryBytes)))
	if c.ComputeUnits > 0 {
		line("units", "%d", c.ComputeUnits)
	}
	line("memory", "%s, largest buffer %s", heaps(c), bench.FormatBytes(min(c.MaxStorageBufferRange, c.MaxAllocationBytes)))
	line("types", "%s", types(c))
	line("matrices", "%s", matrices(c))
	if m := matrices2(c); m != "" {
		line("", "%s", m)
	}
	var automatic []string
	for _, t := range formatsAsked {
		if s := support(c, attention.Auto, t, 128); s.Supported {
			automatic = append(automatic, fmt.Sprintf("%s for %v", strings.Fields(s.Choice)[0], t))
		}
	}
	if len(automatic) > 0 {
		line("auto", "%s (headdim 128)", strings.Join(automatic, ", "))
	}
	for _, impl := range attention.Impls() {
		name := impl.String()
		for _, text := range describePath(c, impl) {
			line(name, "%s", text)
			name = ""
		}
	}
}

// describePath returns a line with the formats that a path takes, and one for each reason why it
// does not take the others.
func describePath(c *vk.Caps, impl attention.Impl) []string {
	var takes []string
	var reasons []string
	because := make(map[string][]string)
	for _, t := range formatsAsked {
		var refused []string
		why := ""
		for _, d := range headDims {
			if s := support(c, impl, t, d); !s.Supported {
				refused = append(refused, fmt.Sprint(d))
				why = s.Reason
			}
		}
		what := t.String()
		switch {
		case len(refused) < len(headDims) && len(refused) > 0:
			takes = append(takes, what)
			what += " headdim " + strings.Join(refused, ", ")
		case len(refused) == 0:
			takes = append(takes, what)
			continue
		}
		if because[why] == nil {
			reasons = append(reasons, why)
		}
		because[why] = append(because[why], what)
	}
	var lines []string
	if len(takes) > 0 {
		lines = append(lines, strings.Join(takes, ", "))
	}
	for _, why := range reasons {
		if len(because[why]) == len(formatsAsked) {
			return append(lines, "no: "+why)
		}
		lines = append(lines, fmt.Sprintf("not %s: %s", strings.Join(because[why], ", "), why))
	}
	return lines
}

func subgroup(c *vk.Caps) string {
	s := fmt.Sprint(c.SubgroupSize)
	if c.MinSubgroupSize != c.MaxSubgroupSize {
		s += fmt.Sprintf(" (%d to %d)", c.MinSubgroupSize, c.MaxSubgroupSize)
	}
	if c.SubgroupSizeControl {
		s += ", size on request"
	}
	if c.ComputeFullSubgroups {
		s += ", full subgroups"
	}
	if c.MaximalReconvergence {
		return s + ", maximal reconvergence"
	}
	return s + ", no maximal reconvergence: flashvk selftest tells whether kernels are right all the same"
}

// heaps describes the memory of the device itself, or all of it if the device shares the host's.
func heaps(c *vk.Caps) string {
	var local, all uint64
	for _, h := range c.Heaps {
		all += h.SizeBytes
		if h.DeviceLocal {
			local = max(local, h.SizeBytes)
		}
	}
	if local == 0 {
		return bench.FormatBytes(all)
	}
	return bench.FormatBytes(local) + " device-local"
}

// types lists the formats and features that not every device has.
func types(c *vk.Caps) string {
	list := those([]feature{
		{c.Float16, "float16"}, {c.Storage16, "16-bit storage"}, {c.BFloat16Type, "bfloat16"}, {c.Float8Type, "float8"},
		{c.Int8, "int8"}, {c.Int64, "int64"}, {c.Float64, "float64"},
		{c.AtomicFloat32AddBuffer, "float32 atomic add"}, {c.BufferDeviceAddress, "buffer addresses"},
	})
	if len(list) == 0 {
		return "float32 only"
	}
	return strings.Join(list, ", ")
}

// matrices summarizes the cooperative-matrix shapes, a line for each combination of types.
func matrices(c *vk.Caps) string {
	if !c.CoopMat {
		return "none (no VK_KHR_cooperative_matrix)"
	}
	var order []string
	sizes := make(map[string][]string)
	seen := make(map[string]bool)
	for _, s := range c.CoopMatShapes {
		kind := fmt.Sprintf("%v*%v+%v", s.A, s.B, s.C)
		size := fmt.Sprintf("%dx%dx%d", s.M, s.N, s.K)
		if seen[kind+size] { // saturating and other variants of the same shape
			continue
		}
		seen[kind+size] = true
		if sizes[kind] == nil {
			order = append(order, kind)
		}
		sizes[kind] = append(sizes[kind], size)
	}
	for i, kind := range order {
		order[i] = kind + " " + strings.Join(sizes[kind], " ")
	}
	return strings.Join(order, ",\n"+strings.Repeat(" ", 14))
}

// matrices2 lists the features of VK_NV_cooperative_matrix2.
func matrices2(c *vk.Caps) string {
	m := c.CoopMat2
	return strings.Join(those([]feature{
		{m.WorkgroupScope, "workgroup scope"}, {m.FlexibleDimensions, "flexible dimensions"}, {m.Reductions, "reductions"},
		{m.Conversions, "conversions"}, {m.PerElement, "per-element operations"},
		{m.TensorAddressing, "tensor addressing"}, {m.BlockLoads, "block loads"},
	}), ", ")
}

// A feature is one that not every device has.
type feature struct {
	have bool
	name string
}

func those(features []feature) (names []string) {
	for _, f := range features {
		if f.have {
			names = append(names, f.name)
		}
	}
	return names
}
