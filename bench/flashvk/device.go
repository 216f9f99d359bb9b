package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
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
