package attention

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
)

// shapesOf calls f for every head_dim, dtype and mask.
func shapesOf(f func(p Problem)) {
	for headDim := 8; headDim <= 256; headDim += 8 {
		for _, t := range dtype.All() {
			for _, causal := range []bool{false, true} {
				f(Problem{Batch: 4, NumHeads: 16, NumKVHeads: 16, SeqQ: 4096, SeqKV: 4096, HeadDim: headDim, DType: t, Causal: causal})
			}
		}
	}
}

// pathsOf returns the paths that a device should offer for inputs of type t.
func (d *fakeDevice) pathsOf(t dtype.DType) []Impl {
	switch t {
	case dtype.Float16:
		return d.f16
	case dtype.BFloat16:
		return d.bf16
	}
	return d.f32
}

// TestChoose says that every device runs every shape that it can hold, on every
// path that it should, and that Auto takes the first of them, on a CPU device the last.
func TestChoose(t *testing.T) {
	for _, d := range fakeDevices() {
		t.Run(d.caps.Name, func(t *testing.T) {
			shapesOf(func(p Problem) {
				want := d.pathsOf(p.DType)
				c, err := chooseForward(&d.caps, p, Options{})
				switch {
				case len(want) == 0 && !errors.Is(err, vk.ErrUnsupported):
					t.Errorf("%v: %v, %v, want vk.ErrUnsupported", p, c, err)
				case len(want) > 0 && err != nil:
					t.Errorf("%v: %v", p, err)
				case len(want) > 0 && p.DType != dtype.Float32 && d.caps.Type != vk.CPU && c.Impl != want[0],
					d.caps.Type == vk.CPU && c.Impl != Scalar:
					t.Errorf("%v: %v, want %v", p, c, want)
				}
				if len(want) > 0 {
					want = append(slices.Clone(want), Unfused)
				}
				for _, impl := range Impls() {
					c, err := chooseForward(&d.caps, p, Options{Impl: impl})
					if slices.Contains(want, impl) && (err != nil || c.Impl != impl) {
						t.Errorf("%v: forced %v: %v, %v", p, impl, c, err)
					}
					if err == nil && c.Feasible(&d.caps, p) != nil {
						t.Errorf("%v: forced %v: %v is not feasible", p, impl, c)
					}
					if !slices.Contains(want, impl) && p.DType != dtype.Float32 && !errors.Is(err, vk.ErrUnsupported) {
						t.Errorf("%v: forced %v: %v, %v, want vk.ErrUnsupported", p, impl, c, err)
					}
				}
			})
		})
	}
}

// TestFamily looks at names that hold each other.
func TestFamily(t *testing.T) {
	for _, d := range fakeDevices() {
		if got := family(&d.caps); got != d.family {
			t.Errorf("%s: family %q, want %q", d.caps.Name, got, d.family)
		}
	}
	for _, c := range []struct {
		vendor       uint32
		name, family string
	}{
		{chips.VendorNVIDIA, "NVIDIA GH200 480GB", "hopper"},
		{chips.VendorNVIDIA, "NVIDIA A30", "ampere"},
		{chips.VendorNVIDIA, "NVIDIA A10G", "ampere-rtx"},
		{chips.VendorNVIDIA, "NVIDIA A100 80GB PCIe", "ampere"},
		{chips.VendorNVIDIA, "NVIDIA RTX A3000 Laptop GPU", "ampere-rtx"},
		{chips.VendorNVIDIA, "NVIDIA RTX A4000", "ampere-rtx"},
		{chips.VendorNVIDIA, "NVIDIA RTX 4000 SFF Ada Generation", "ada"},
		{chips.VendorNVIDIA, "Quadro RTX 4000", ""},
		{chips.VendorNVIDIA, "NVIDIA L40S", "ada"},
		{chips.VendorNVIDIA, "NVIDIA GeForce RTX 4060 Laptop GPU", "ada"},
		{chips.VendorNVIDIA, "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "blackwell-rtx"},
		{chips.VendorNVIDIA, "NVIDIA GeForce GTX 1080", ""},
		{chips.VendorNVIDIA, "Tesla V100-SXM2-16GB", ""},
		{chips.VendorAMD, "AMD Radeon RX 6950 XT (RADV NAVI21)", ""},
		{chips.VendorAMD, "AMD Radeon Graphics (RADV PHOENIX)", "rdna3"},
		{chips.VendorAMD, "AMD Radeon 780M Graphics", "rdna3"},
		{chips.VendorAMD, "AMD Radeon RX 9060 XT", "rdna4"},
		{chips.VendorAMD, "NVIDIA H100", ""},
	} {
		if got := family(&vk.Caps{VendorID: c.vendor, Name: c.name}); got != c.family {
			t.Errorf("%s: family %q, want %q", c.name, got, c.family)
		}
	}
}

// TestRowsFeasible says that the sizes of a family's rows fit all its devices,
// up to the largest head_dim that they name: one that did not would be passed
// over in silence.
func TestRowsFeasible(t *testing.T) {
	for i := range fwdRows {
		row := &fwdRows[i]
		if row.Family == "" {
			continue // any device: less and less demanding
		}
		tried := 0
		for _, d := range fakeDevices() {
			if !table.OneOf(d.family, row.Family) {
				continue
			}
			for _, dt := range dtype.All() {
				if !slices.Contains(d.pathsOf(dt), row.Config.Impl) && row.Config.Impl != Unfused {
					continue
				}
				tried++
				p := Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 1, HeadDim: row.Shape.headDim, DType: dt}
				if err := row.Config.Feasible(&d.caps, p); err != nil {
					t.Errorf("row %d, %s %v, on %s: %v", i, row.Family, row.Config, d.caps.Name, err)
				}
			}
		}
		if tried == 0 {
			t.Errorf("row %d, %s %v: no device of the tests is in the family and has the path", i, row.Family, row.Config)
		}
	}
}

// TestRowsReachable says that each row is what some problem gets on some device.
func TestRowsReachable(t *testing.T) {
	reached := make(map[*fwdRow]bool)
	for _, d := range fakeDevices() {
		shapesOf(func(p Problem) {
			for _, seq := range []int{1, 256, 512, 1024, 2048, 4096} {
				p.SeqQ, p.SeqKV = seq, max(p.SeqKV, seq)
				if seq == 256 || seq == 1024 || seq == 2048 {
					p.SeqKV = seq
				}
				for _, batch := range []int{1, 4, 32} {
					p.Batch = batch
					for _, impl := range Impls() {
						if row, _ := fwdTable.Find(&d.caps, &p, &table.Query[Config]{}, impl.String()); row != nil {
							reached[row] = true
						}
					}
				}
			}
		})
	}
	for i := range fwdTable.Rows {
		if row := &fwdTable.Rows[i]; !reached[row] {
			t.Errorf("row %d is never chosen: %+v", i, row)
		}
	}
}

// TestFill says that large blocks wait for a problem that makes enough of
// them, by the device's number of units.
func TestFill(t *testing.T) {
	few := *fwdTable
	few.Rows = []fwdRow{{Family: "ada", Shape: shape{headDim: 64}, Fill: 1, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 2, BlockN: 64}}} // 128 rows
	caps := nvidia("NVIDIA GeForce RTX 4090", 128, true)
	p := Problem{Batch: 1, NumHeads: 8, NumKVHeads: 8, SeqQ: 512, SeqKV: 512, HeadDim: 64, DType: dtype.Float16}
	for _, c := range []struct {
		batch, seqQ int
		units       uint32
		want        bool
	}{
		{1, 512, 128, false}, // 32 blocks
		{4, 512, 128, true},  // 128
		{4, 511, 128, true},  // 128, the last of each head not full
		{4, 384, 128, false}, // 96
		{4, 385, 128, true},
		{4, 512, 129, false},
		{1, 512, 32, true},
		{1, 1, 0, true}, // a driver that does not tell
	} {
		p.Batch, p.SeqQ, caps.ComputeUnits = c.batch, c.seqQ, c.units
		if _, err := few.Find(&caps, &p, &table.Query[Config]{}, CoopMat2.String()); (err == nil) != c.want {
			t.Errorf("batch %d, seq_q %d, %d units: %v", c.batch, c.seqQ, c.units, err)
		}
	}
	p.Batch, p.SeqQ, caps.ComputeUnits = 1, 1024, 128
	small, err := chooseForward(&caps, p, Options{Impl: CoopMat2})
	p.Batch = 16
	large, err2 := chooseForward(&caps, p, Options{Impl: CoopMat2})
	if err != nil || err2 != nil || small.blockRows(&caps, p.DType) >= large.blockRows(&caps, p.DType) {
		t.Errorf("few blocks: %v, %v; many: %v, %v", small, err, large, err2)
	}
}

// TestNoScalarLayout says which demand a device fails that has everything but
// the layout of the buffers.
func TestNoScalarLayout(t *testing.T) {
	caps := leastDevice()
	caps.ScalarBlockLayout = false
	_, err := chooseForward(&caps, Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 1, HeadDim: 8}, Options{})
	if want := "attention: scalar: the device has no scalar block layout: unsupported on this device"; fmt.Sprint(err) != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// BenchmarkChoose is part of every recorded call.
func BenchmarkChoose(b *testing.B) {
	p := Problem{Batch: 4, NumHeads: 16, NumKVHeads: 16, SeqQ: 4096, SeqKV: 4096, HeadDim: 128}
	for _, d := range fakeDevices() {
		b.Run(d.caps.Name, func(b *testing.B) {
			for range b.N {
				if _, err := chooseForward(&d.caps, p, Options{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
