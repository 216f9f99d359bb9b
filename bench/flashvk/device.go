package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
	"unicode/utf8"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/vk"
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
	bar      *progressbar.ProgressBar
}

func newProgress(w io.Writer) *progress {
	f, ok := w.(*os.File)
	return &progress{w: w, terminal: ok && term.IsTerminal(int(f.Fd()))}
}

// labelWidth is the width of the label before the bar, so that the bar does not move.
const labelWidth = 40

// label returns what in labelWidth runes.
func label(what string) string {
	what = text.Short(what, labelWidth)
	return what + fmt.Sprintf("%*s", labelWidth-utf8.RuneCountInString(what), "")
}

// step shows that done of total steps are complete, and what comes next.
func (p *progress) step(done, total int, what string) {
	if !p.terminal {
		return
	}
	if p.bar == nil {
		p.bar = progressbar.NewOptions(total,
			progressbar.OptionSetWriter(p.w),
			progressbar.OptionSetWidth(16),
			progressbar.OptionSetPredictTime(true),
			progressbar.OptionClearOnFinish())
	}
	p.bar.Describe(label(what))
	p.bar.Set(done) // an error says that the terminal is gone; the work goes on
}

// part returns the function that shows the steps of case i of n.
func (p *progress) part(i, n int) func(done, total int, what string) {
	if n == 1 {
		return p.step
	}
	const parts = 1000
	return func(done, total int, what string) {
		p.step(i*parts+done*parts/max(total, 1), n*parts, fmt.Sprintf("case %d of %d: %s", i+1, n, what))
	}
}

// finish removes the bar.
func (p *progress) finish() {
	if p.bar != nil {
		p.bar.Clear()
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
