package bench

import (
	"context"
	"os"
	"time"

	"github.com/flashvk/flashvk/vk"
)

// MeasureStarts completes overheads by Cold and Warm: opening a device and a first call of each
// path of c that is right, with an empty cache of compiled pipelines, and with the cache of the
// cold start. Open opens the device with a folder for the cache.
func MeasureStarts(ctx context.Context, open func(cacheDir string) (*vk.Device, error), c Case, list []Overhead) error {
	samples := min(c.Protocol.Samples, maxStarts)
	defer withoutDriverCache()()
	for i := range list {
		x := &list[i]
		for n := 0; n < samples && x.Status == StatusOK; n++ {
			dir, err := os.MkdirTemp("", "flashvk-start-")
			if err != nil {
				return err
			}
			cold, err := start(ctx, open, dir, c, x.Impl)
			if err == nil {
				x.Cold = append(x.Cold, cold)
				var warm float64
				warm, err = start(ctx, open, dir, c, x.Impl)
				x.Warm = append(x.Warm, warm)
			}
			os.RemoveAll(dir)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// maxStarts bounds the samples of a start, which may take seconds.
const maxStarts = 3

// start returns the time from before a device is opened to the end of the first call.
func start(ctx context.Context, open func(string) (*vk.Device, error), dir string, c Case, impl string) (ns float64, err error) {
	values := map[string][]float32{}
	for i, t := range c.Op.Tensors() {
		if t.Read(c.Pass) && t.Ints == nil {
			values[t.Name] = t.draw(uint64(i + 1))
		}
	}
	begin := time.Now()
	d, err := open(dir)
	if err != nil {
		return 0, err
	}
	defer d.Close()
	r := newOpRun(d, c)
	defer r.close()
	r.values = values
	if err := r.addSet(); err != nil {
		return 0, err
	}
	if err := r.restore(ctx); err != nil {
		return 0, err
	}
	err = submit(ctx, d, "first call", func(c *vk.Cmd) error { return r.record(c, 0, r.op, impl) })
	return float64(time.Since(begin)), err
}

// withoutDriverCache turns off caches of drivers on disk, unless the user has set their
// variables: a start would find what an earlier one compiled. The function that it returns undoes
// this.
func withoutDriverCache() (restore func()) {
	var set []string
	for name, off := range map[string]string{"MESA_SHADER_CACHE_DISABLE": "true", "__GL_SHADER_DISK_CACHE": "0"} {
		if _, ok := os.LookupEnv(name); !ok && os.Setenv(name, off) == nil {
			set = append(set, name)
		}
	}
	return func() {
		for _, name := range set {
			os.Unsetenv(name)
		}
	}
}
