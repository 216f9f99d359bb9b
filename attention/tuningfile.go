package attention

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// A Tuning holds configurations that were measured on one device with one
// driver. Options.Tuning puts them before the built-in table; on any other
// device they have no effect. A Tuning that nobody adds to any more may be
// shared by goroutines.
//
// A row stands for problems like the one that was measured: the same dtype,
// head_dim and mask; and batch*num_heads*seq_q, seq_q and seq_kv within a factor
// of 4, or both so large that more makes no difference. Of several rows the
// nearest counts.
type Tuning struct {
	device tuningDevice
	rows   []tuningRow
	stale  int // rows of the file that no longer apply
}

// tuningDevice is what a measurement is only valid for.
type tuningDevice struct {
	VendorID      uint32 `json:"vendor_id"`
	DeviceID      uint32 `json:"device_id"`
	Name          string `json:"name"`
	DriverID      uint32 `json:"driver_id"`
	DriverVersion uint32 `json:"driver_version"`
}

func tuningDeviceOf(caps *vk.Caps) tuningDevice {
	return tuningDevice{caps.VendorID, caps.DeviceID, caps.Name, caps.DriverID, caps.DriverVersion}
}

// tuningRow is one measurement.
type tuningRow struct {
	Problem Problem
	Config  Config
	NS      float64 // device time of a call
}

// NewTuning returns a Tuning without rows for a device.
func NewTuning(caps *vk.Caps) *Tuning { return &Tuning{device: tuningDeviceOf(caps)} }

// Len returns the number of rows.
func (t *Tuning) Len() int {
	if t == nil {
		return 0
	}
	return len(t.rows)
}

// Add notes that c is the best configuration of its path for p, with a device
// time of ns nanoseconds. It replaces what was known about the path and p.
func (t *Tuning) Add(p Problem, c Config, ns float64) {
	t.rows = slices.DeleteFunc(t.rows, func(r tuningRow) bool { return r.Problem == p && r.Config.Impl == c.Impl })
	t.rows = append(t.rows, tuningRow{p, c, ns})
}

// find returns the row of a path that is nearest to p and feasible, or nil.
func (t *Tuning) find(caps *vk.Caps, p *Problem, impl Impl) *tuningRow {
	if t == nil || t.device != tuningDeviceOf(caps) {
		return nil
	}
	var best *tuningRow
	least := math.Inf(1)
	for i := range t.rows {
		row := &t.rows[i]
		if row.Config.Impl != impl {
			continue
		}
		if d := tuningDistance(&row.Problem, p); d < least && row.configFor(caps, p).Feasible(caps, *p) == nil {
			best, least = row, d
		}
	}
	return best
}

// auto returns what Auto takes where the built-in table has chosen usual. The
// order of the paths changes only for one that was measured beside the usual
// one, on the same problem, and was faster.
func (t *Tuning) auto(caps *vk.Caps, p *Problem, usual Config) Config {
	best := t.find(caps, p, usual.Impl)
	if best == nil {
		return usual
	}
	measured := best.Problem
	for i := range t.rows {
		row := &t.rows[i]
		if row.Problem == measured && row.Config.Impl != Unfused && row.NS < best.NS && row.configFor(caps, p).Feasible(caps, *p) == nil {
			best = row
		}
	}
	return best.configFor(caps, p)
}

// configFor returns the row's configuration for p. How many splits are best
// follows from the sizes, so what was measured holds for the same sizes only.
func (r *tuningRow) configFor(caps *vk.Caps, p *Problem) Config {
	c, measured := r.Config, r.Problem
	measured.Scale = p.Scale
	if measured != *p {
		c.Splits = c.splitsToFill(caps, *p)
	}
	return c
}

// Sizes from which on a problem is large for any device: more makes no
// difference to which configuration is best.
const (
	manyRows = 1 << 17 // 8 blocks of 64 rows for each of 256 compute units
	manyKeys = 1 << 9  // several tiles of keys, or several blocks of rows, so that the last one counts for little
)

// tuningDistance says how far the problem p is from one that was measured:
// doublings of the sizes that decide which configuration is best. It is +Inf if
// the measurement does not tell anything about p.
func tuningDistance(measured, p *Problem) float64 {
	if measured.DType != p.DType || measured.HeadDim != p.HeadDim || measured.Causal != p.Causal {
		return math.Inf(1)
	}
	rows := func(p *Problem) float64 { return float64(p.Batch) * float64(p.NumHeads) * float64(p.SeqQ) }
	return doublings(rows(measured), rows(p), manyRows) +
		doublings(float64(measured.SeqQ), float64(p.SeqQ), manyKeys) +
		doublings(float64(measured.SeqKV), float64(p.SeqKV), manyKeys)
}

// doublings returns how many times a has to be doubled or halved to give b:
// +Inf beyond two, unless both are enough.
func doublings(a, b, enough float64) float64 {
	d := math.Abs(math.Log2(a / b))
	if d > 2 && min(a, b) < enough {
		return math.Inf(1)
	}
	return d
}

// tuningFormat is the version of the file's format.
const tuningFormat = 1

// maxTuningBytes bounds what LoadTuning reads: thousands of rows.
const maxTuningBytes = 4 << 20

// tuningFile is the JSON of a Tuning.
type tuningFile struct {
	Format int             `json:"format"`
	Device tuningDevice    `json:"device"`
	Rows   []tuningFileRow `json:"rows"`
}

// tuningFileRow is the JSON of a row. Module is the hash of the path's SPIR-V:
// a kernel that has changed since has to be measured anew.
type tuningFileRow struct {
	Kernel  string  `json:"kernel"`
	Module  string  `json:"module"`
	DType   string  `json:"dtype"`
	Batch   int     `json:"batch"`
	Heads   int     `json:"heads"`
	KVHeads int     `json:"kv_heads"`
	SeqQ    int     `json:"seq_q"`
	SeqKV   int     `json:"seq_kv"`
	HeadDim int     `json:"head_dim"`
	Causal  bool    `json:"causal"`
	Align   string  `json:"causal_align,omitempty"`
	Config  Config  `json:"config"`
	NS      float64 `json:"ns"`
}

// tuningKernel is the name of the only kernel that is tuned so far.
const tuningKernel = "attention_fwd"

// TuningPath returns the file for a device's Tuning in a folder: vendor, device
// and driver, in numbers.
func TuningPath(dir string, caps *vk.Caps) string {
	return filepath.Join(dir, fmt.Sprintf("%04x-%04x-%d-%08x.json", caps.VendorID, caps.DeviceID, caps.DriverID, caps.DriverVersion))
}

// LoadTuning reads a Tuning that Write wrote, for a device.
//
// It returns an error, and no Tuning, if the file is of another device or
// driver, is damaged, or is of a newer format. Rows whose kernels have changed are
// left out, see Stale, and those of kernels that it does not know.
func LoadTuning(r io.Reader, caps *vk.Caps) (*Tuning, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxTuningBytes+1))
	if err != nil {
		return nil, fmt.Errorf("attention: tuning: %w", err)
	}
	if len(data) > maxTuningBytes {
		return nil, fmt.Errorf("attention: tuning: more than %d bytes", maxTuningBytes)
	}
	var version struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return nil, fmt.Errorf("attention: tuning: %w", err)
	}
	if version.Format != tuningFormat {
		return nil, fmt.Errorf("attention: tuning: format=%d is not %d, which this version reads", version.Format, tuningFormat)
	}
	var file tuningFile
	in := json.NewDecoder(bytes.NewReader(data))
	in.DisallowUnknownFields()
	if err := in.Decode(&file); err != nil {
		return nil, fmt.Errorf("attention: tuning: %w", err)
	}
	t := NewTuning(caps)
	if file.Device != t.device {
		return nil, fmt.Errorf("attention: tuning: it was measured on %q with driver %d version %#x, not on this device with this driver",
			file.Device.Name, file.Device.DriverID, file.Device.DriverVersion)
	}
	for i := range file.Rows {
		row := &file.Rows[i]
		if row.Kernel != tuningKernel {
			continue
		}
		p, err := row.problem()
		if err == nil {
			err = row.check()
		}
		if err != nil {
			return nil, fmt.Errorf("attention: tuning: row %d: %w", i, err)
		}
		if row.Module != moduleHash(row.Config.Impl, p.DType) {
			t.stale++
			continue
		}
		t.Add(p, row.Config, row.NS)
	}
	return t, nil
}

// problem returns the problem of a row.
func (r *tuningFileRow) problem() (p Problem, err error) {
	p = Problem{
		Batch: r.Batch, NumHeads: r.Heads, NumKVHeads: r.KVHeads, SeqQ: r.SeqQ, SeqKV: r.SeqKV, HeadDim: r.HeadDim, Causal: r.Causal,
	}
	if p.DType, err = dtype.Parse(r.DType); err != nil {
		return p, err
	}
	if r.Align != "" {
		if p.CausalAlign, err = ParseAlign(r.Align); err != nil {
			return p, err
		}
	}
	return p, p.Validate()
}

// check returns an error if the row cannot come from a measurement. Sizes are
// bounded so that Feasible computes with them without overflow.
func (r *tuningFileRow) check() error {
	const limit = 1 << 16
	if !slices.Contains(Impls(), r.Config.Impl) {
		return fmt.Errorf("impl %v is not a path", r.Config.Impl)
	}
	v := reflect.ValueOf(r.Config)
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Int && (f.Int() < 0 || f.Int() > limit) {
			return fmt.Errorf("%s=%d is not between 0 and %d", v.Type().Field(i).Name, f.Int(), limit)
		}
	}
	if !(r.NS > 0 && r.NS < math.Inf(1)) {
		return fmt.Errorf("ns=%v is not a time", r.NS)
	}
	return nil
}

// Stale returns how many rows of the file that t comes from were measured with
// kernels that have changed since.
func (t *Tuning) Stale() int {
	if t == nil {
		return 0
	}
	return t.stale
}

// moduleHash returns a short hash of the SPIR-V of a path for inputs of type
// d.
func moduleHash(impl Impl, d dtype.DType) string {
	kernels := map[Impl][]string{
		CoopMat2: {"attention_fwd_coopmat2", "attention_fwd_f32x2_coopmat2", "attention_combine"},
		CoopMat:  {"attention_fwd_coopmat", "attention_fwd_f32x2_coopmat", "attention_combine"},
		Scalar:   {"attention_fwd_scalar", "attention_combine"},
		Unfused:  {"attention_unfused_scores", "attention_unfused_softmax", "attention_unfused_values"},
	}[impl]
	h := sha256.New()
	for _, v := range shaders.Variants() {
		if !slices.Contains(kernels, v.Kernel) || v.Type != "" && v.Type != d.Short() {
			continue
		}
		if m, err := shaders.Get(v.Kernel, v.Type); err == nil {
			fmt.Fprintf(h, "%s %d\n", m.Name, len(m.SPIRV))
			h.Write(m.SPIRV)
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}

// Write writes t as JSON, for LoadTuning.
func (t *Tuning) Write(w io.Writer) error {
	file := tuningFile{Format: tuningFormat, Device: t.device, Rows: []tuningFileRow{}}
	for _, r := range t.rows {
		p := r.Problem
		row := tuningFileRow{
			Kernel: tuningKernel, Module: moduleHash(r.Config.Impl, p.DType), DType: p.DType.String(),
			Batch: p.Batch, Heads: p.NumHeads, KVHeads: p.NumKVHeads, SeqQ: p.SeqQ, SeqKV: p.SeqKV, HeadDim: p.HeadDim,
			Causal: p.Causal, Config: r.Config, NS: r.NS,
		}
		if p.CausalAlign != BottomRight {
			row.Align = p.CausalAlign.String()
		}
		file.Rows = append(file.Rows, row)
	}
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	out.SetIndent("", "\t")
	return out.Encode(file)
}

// LoadTuningFile is LoadTuning for the file at path. A file that does not
// exist is an error that wraps fs.ErrNotExist.
func LoadTuningFile(path string, caps *vk.Caps) (*Tuning, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("attention: tuning: %w", err)
	}
	defer f.Close()
	return LoadTuning(f, caps)
}

// WriteFile writes t to the file at path, making its folder. Whoever opens the
// file sees the old content or the new, whole.
func (t *Tuning) WriteFile(path string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("attention: tuning: %w", err)
		}
	}()
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	err = errors.Join(t.Write(f), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
