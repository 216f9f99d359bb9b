package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func deviceVar(f *pflag.FlagSet, p *string) {
	f.StringVar(p, "device", os.Getenv("FLASHVK_DEVICE"), "device by its number in flashvk devices or a part of its name (default: FLASHVK_DEVICE of the environment, or the best GPU, a CPU device if there is none)")
}

// openDevice opens the device that --device names. Compiled pipelines are kept
// in the user's cache folder, if there is one.
func (a *app) openDevice(name string) (*vk.Device, error) {
	return vk.Open(vk.Options{Device: name, Name: "flashvk", UserCache: true, Compiling: a.compiling})
}

// onDevice opens the device that --device names, runs f on it, and closes it.
func (a *app) onDevice(name string, f func(d *vk.Device, env bench.Environment) error) (err error) {
	d, err := a.openDevice(name)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, d.Close())
		if cache := d.CacheErr(); cache != nil {
			fmt.Fprintf(a.stderr, "flashvk: WARNING: %v: kernels are compiled anew by every command\n", cache)
		}
	}()
	return f(d, environment(d.Caps()))
}

// environment describes the device and the program for a report.
func environment(caps *vk.Caps) bench.Environment {
	build := bench.ReadBuildInfo()
	return bench.Environment{
		Device:     caps.Name,
		DeviceType: caps.Type.String(),
		Driver:     driver(caps),
		CPU:        caps.Type == vk.CPU,
		Version:    build.Version,
		Commit:     build.Commit,
	}
}

func driver(caps *vk.Caps) string {
	return fmt.Sprintf("%s %s, Vulkan %v", caps.DriverName, caps.DriverInfo, caps.APIVersion)
}

// announce tells on w what device is used, and warns if it is a CPU.
func announce(w io.Writer, env bench.Environment) {
	fmt.Fprintf(w, "flashvk: device %v\n", env)
	if env.CPU {
		fmt.Fprintf(w, "flashvk: WARNING: %s\n", bench.CPUWarning)
	}
}

// watch makes pr watch the clock of the device. The Monitor is nil if the device cannot run the
// reference kernel; its methods accept nil.
func watch(ctx context.Context, d *vk.Device, pr *bench.Protocol) (*bench.Monitor, error) {
	m, err := bench.NewMonitor(d)
	if errors.Is(err, vk.ErrUnsupported) {
		return nil, nil
	}
	if err == nil {
		pr.Tick = m.Tick
	}
	return m, err
}

// A progress is a bar with the remaining time on standard error, if that is a terminal. It is
// drawn after the first step, so that short work shows none.
type progress struct {
	w        io.Writer
	terminal bool
	start    time.Time
	drawn    bool
}

func newProgress(w io.Writer) *progress {
	f, ok := w.(*os.File)
	return &progress{w: w, terminal: ok && term.IsTerminal(int(f.Fd())), start: time.Now()}
}

// labelWidth is the width of the label before the bar, so that the bar does not move.
const labelWidth = 40

// label returns what in labelWidth runes.
func label(what string) string { return fmt.Sprintf("%-*s", labelWidth, text.Short(what, labelWidth)) }

// step shows that done of total steps are complete, and what comes next.
func (p *progress) step(done, total int, what string) {
	if !p.terminal {
		return
	}
	const width = 16
	p.drawn, total = true, max(total, 1)
	done = min(done, total)
	full, left := width*done/total, "-"
	if done > 0 {
		left = time.Duration(float64(time.Since(p.start)) / float64(done) * float64(total-done)).Round(time.Second).String()
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s %3d%% |%s%s| %s left", label(what), 100*done/total, strings.Repeat("█", full), strings.Repeat(" ", width-full), left)
}

// finish removes the bar.
func (p *progress) finish() {
	if p.drawn {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// compiling is vk.Options.Compiling: it tells on a terminal which kernels the driver compiles, where
// that takes long, in a kernel's first call on a device. Later calls find it in the cache of
// pipelines. A line stands in place of a progress bar, which is drawn again below it.
func (a *app) compiling(kernel string) (done func()) {
	say := func(format string, args ...any) {
		fmt.Fprintf(a.stderr, "\r\x1b[Kflashvk: %s\n", text.Line(fmt.Sprintf(format, args...)))
	}
	start, said := time.Now(), make(chan struct{})
	timer := time.AfterFunc(a.patience, func() {
		say("the driver compiles %s", kernel)
		close(said)
	})
	return func() {
		if !timer.Stop() {
			<-said
			say("the driver compiled %s in %v", kernel, time.Since(start).Round(time.Second/100))
		}
	}
}

func newDevices(a *app) *cobra.Command {
	var asJSON bool
	return a.command(&cobra.Command{Use: "devices"}, func(f *pflag.FlagSet) {
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
	fmt.Fprintf(b, "%d  %s (%v)\n", c.Index, c.Name, c.Type)
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(b, "   %-10s %s\n", name, text)
		}
	}
	line("unusable", c.Unusable)
	line("driver", driver(c))
	line("subgroup", subgroup(c))
	line("workgroup", fmt.Sprintf("%d invocations, %s shared memory", c.MaxWorkgroupInvocations, bench.FormatBytes(uint64(c.MaxSharedMemoryBytes))))
	if c.ComputeUnits > 0 {
		line("units", fmt.Sprint(c.ComputeUnits))
	}
	line("memory", fmt.Sprintf("%s, largest buffer %s", heaps(c), bench.FormatBytes(min(c.MaxStorageBufferRange, c.MaxAllocationBytes))))
	line("types", cmp.Or(those(
		feature{c.Float16, "float16"}, feature{c.Storage16, "16-bit storage"}, feature{c.BFloat16Type, "bfloat16"}, feature{c.Float8Type, "float8"},
		feature{c.Int8, "int8"}, feature{c.Int64, "int64"}, feature{c.Float64, "float64"},
		feature{c.AtomicFloat32AddBuffer, "float32 atomic add"}, feature{c.BufferDeviceAddress, "buffer addresses"},
	), "float32 only"))
	line("matrices", matrices(c))
	m := c.CoopMat2
	line("", those(
		feature{m.WorkgroupScope, "workgroup scope"}, feature{m.FlexibleDimensions, "flexible dimensions"}, feature{m.Reductions, "reductions"},
		feature{m.Conversions, "conversions"}, feature{m.PerElement, "per-element operations"},
		feature{m.TensorAddressing, "tensor addressing"}, feature{m.BlockLoads, "block loads"},
	))
	var automatic []string
	for _, t := range formatsAsked {
		if s := support(c, attention.Auto, t, 128); s.Supported {
			automatic = append(automatic, fmt.Sprintf("%s for %v", strings.Fields(s.Choice)[0], t))
		}
	}
	if len(automatic) > 0 {
		line("auto", strings.Join(automatic, ", ")+" (headdim 128)")
	}
	for _, impl := range attention.Impls() {
		name := impl.String()
		for _, text := range describePath(c, impl) {
			line(name, text)
			name = ""
		}
	}
}

// describePath returns a line with the formats that a path takes, and one for each reason why it
// does not take the others.
func describePath(c *vk.Caps, impl attention.Impl) []string {
	var takes, reasons []string
	because := map[string][]string{}
	for _, t := range formatsAsked {
		var refused []string
		why, what := "", t.String()
		for _, d := range headDims {
			if s := support(c, impl, t, d); !s.Supported {
				refused, why = append(refused, fmt.Sprint(d)), s.Reason
			}
		}
		if len(refused) < len(headDims) {
			takes = append(takes, what)
			what += " headdim " + strings.Join(refused, ", ")
		}
		if refused != nil && because[why] == nil {
			reasons = append(reasons, why)
		}
		if refused != nil {
			because[why] = append(because[why], what)
		}
	}
	var lines []string
	if takes != nil {
		lines = append(lines, strings.Join(takes, ", "))
	}
	for _, why := range reasons {
		if len(because[why]) == len(formatsAsked) {
			lines = append(lines, "no: "+why)
		} else {
			lines = append(lines, fmt.Sprintf("not %s: %s", strings.Join(because[why], ", "), why))
		}
	}
	return lines
}

func subgroup(c *vk.Caps) string {
	s := fmt.Sprint(c.SubgroupSize)
	if c.MinSubgroupSize != c.MaxSubgroupSize {
		s += fmt.Sprintf(" (%d to %d)", c.MinSubgroupSize, c.MaxSubgroupSize)
	}
	if !c.MaximalReconvergence {
		s += ", no maximal reconvergence: flashvk selftest tells whether kernels are right all the same"
	}
	return strings.TrimSuffix(s+", "+those(
		feature{c.SubgroupSizeControl, "size on request"}, feature{c.ComputeFullSubgroups, "full subgroups"}, feature{c.MaximalReconvergence, "maximal reconvergence"},
	), ", ")
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

// matrices summarizes the cooperative-matrix shapes, a line for each combination of types.
func matrices(c *vk.Caps) string {
	if !c.CoopMat {
		return "none (no VK_KHR_cooperative_matrix)"
	}
	var kinds []string
	sizes := map[string][]string{}
	for _, s := range c.CoopMatShapes {
		kind, size := fmt.Sprintf("%v*%v+%v", s.A, s.B, s.C), fmt.Sprintf("%dx%dx%d", s.M, s.N, s.K)
		if sizes[kind] == nil {
			kinds = append(kinds, kind)
		}
		if !slices.Contains(sizes[kind], size) { // saturating and other variants have the same shape
			sizes[kind] = append(sizes[kind], size)
		}
	}
	for i, kind := range kinds {
		kinds[i] = kind + " " + strings.Join(sizes[kind], " ")
	}
	return strings.Join(kinds, ",\n"+strings.Repeat(" ", 14))
}

// A feature is one that not every device has.
type feature struct {
	have bool
	name string
}

func those(features ...feature) string {
	var names []string
	for _, f := range features {
		if f.have {
			names = append(names, f.name)
		}
	}
	return strings.Join(names, ", ")
}
