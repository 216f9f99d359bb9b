package cli

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/safetensors/filetest"
	"github.com/flashvk/flashvk/safetensors"
)

// TestKillTrain says that a training that is killed and continued again and again reaches the same
// state as one that is not, byte for byte. Its file is always whole.
func TestKillTrain(t *testing.T) {
	_, dev := device(t)
	dir := t.TempDir()
	args := func(file string, more ...string) []string {
		return append([]string{"train", dev, "--dtype=float32", "--steps=200", "--batches=1", "--save", filepath.Join(dir, file), "--save-every=1"}, more...)
	}
	whole := prepare(t, args("whole")...).start()
	require.Zero(t, whole.wait(), &whole.stderr)
	killed := 0
	for wait := 400 * time.Millisecond; ; wait += 400 * time.Millisecond {
		var load []string
		if _, err := os.Stat(filepath.Join(dir, "part")); err == nil {
			load = []string{"--load", filepath.Join(dir, "part")}
		}
		p := prepare(t, args("part", load...)...).start()
		select {
		case <-p.ended:
		case <-time.After(wait):
			require.NoError(t, p.cmd.Process.Kill())
		}
		// If the process was killed between its last step and its end, the next one has no
		// step to do.
		if p.wait() == 0 || strings.Contains(p.stderr.String(), "none is left") {
			break
		}
		killed++
	}
	require.Positive(t, killed)
	want, err := os.ReadFile(filepath.Join(dir, "whole"))
	require.NoError(t, err)
	got, err := os.ReadFile(filepath.Join(dir, "part"))
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// TestInterruptTrain says that ^C ends a training, which writes its state.
func TestInterruptTrain(t *testing.T) {
	_, dev := device(t)
	path := filepath.Join(t.TempDir(), "model")
	p := prepare(t, "train", dev, "--dtype=float32", "--steps=100000", "--save", path).start()
	p.await("flashvk: memory ")
	time.Sleep(time.Second)
	interrupt(t, p, os.Interrupt)
	q := prepare(t, "train", dev, "--dtype=float32", "--evaluate", path, "--batches=1").start()
	require.Zero(t, q.wait(), &q.stderr)
}

// TestTrainFiles wants one line, before the first step, for files that cannot be read or written.
func TestTrainFiles(t *testing.T) {
	_, dev := device(t)
	none := filepath.Join(t.TempDir(), "none")
	for _, args := range [][]string{
		{"--save", none + "/x"}, {"--weights", none + "/x"}, {"--csv", none + "/x"}, {"--curve", none + "/x"}, {"--evaluate", none},
		{"--curve", filepath.Dir(none) + "/curve", "--beside", "a=" + none},
	} {
		code, stdout, stderr := flashvk(t, append([]string{"train", dev, "--dtype=float32"}, args...)...)
		require.Equal(t, 1, code, args)
		require.Empty(t, stdout, args)
		require.Contains(t, oneError(t, stderr), none, args)
		require.Contains(t, stderr, ": no such file or directory\n", args)
	}
	require.NoFileExists(t, none)
}

// TestTrainTooLarge wants one line for a training that no device has the memory for. The line says
// how many bytes are missing and what would take less, whatever is measured with it.
func TestTrainTooLarge(t *testing.T) {
	_, dev := device(t)
	sizes := []string{dev, "--layers=128", "--d-model=64", "--heads=4", "--headdim=16", "--d-ff=64", "--batch=65536", "--context=32", "--targets=32", "--dtype=float32"}
	const want = `tnp: model and activations take 1[0-9]{12} bytes, [0-9]+ more than the device has left: with checkpoint blocks it would `
	code, stdout, stderr := flashvk(t, append([]string{"train", "--checkpoint=off"}, sizes...)...)
	require.Equal(t, 1, code, stderr)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "flashvk: memory 1")
	require.Regexp(t, `^flashvk: `+want, oneError(t, stderr))
	code, stdout, stderr = flashvk(t, append([]string{"bench", "train", "--shape=tiny", "--checkpoint=off", "--format=csv"}, sizes...)...)
	require.Equal(t, 1, code, stderr)
	require.Regexp(t, `^flashvk: tiny: `+want, oneError(t, stderr))
	require.Regexp(t, want, stdout)
	require.NoError(t, isCSV(stdout))

	// The error names a tensor that no buffer can hold; no device has buffers above 2 TiB.
	code, stdout, stderr = flashvk(t, "train", dev, "--d-ff=262144", "--batch=16384", "--context=1000", "--targets=1000")
	require.Equal(t, 1, code, stderr)
	require.Empty(t, stdout)
	require.Regexp(t, `^flashvk: tnp: .* [0-9]+ .*device`, oneError(t, stderr))
}

// TestTrainNaN says that a NaN in the data, also of a task that comes late, ends a training before its
// first step, with an error that names the element.
func TestTrainNaN(t *testing.T) {
	_, dev := device(t)
	for name, wrong := range map[string]struct {
		value float32
		want  string
	}{
		"x": {float32(math.NaN()), `: x[4 1 2] is NaN: data must be finite`},
		"y": {float32(math.Inf(-1)), `: y[5 2] is -Inf: data must be finite`},
	} {
		dir := t.TempDir()
		data, model := filepath.Join(dir, "data"), filepath.Join(dir, "model")
		shapes := map[string][]int{"x": {6, 5, 3}, "y": {6, 3}}
		values := map[string][]float32{"x": make([]float32, 90), "y": make([]float32, 18)}
		values[name][len(values[name])*2/3+5] = wrong.value
		var tensors []safetensors.Tensor
		for name, shape := range shapes {
			tensors = append(tensors, filetest.F32(name, shape...))
		}
		filetest.Write(t, data, tensors, values)
		code, stdout, stderr := flashvk(t, "train", dev, "--data", data, "--batch=2", "--steps=9", "--dtype=float32", "--save", model, "--save-every=1")
		require.Equal(t, 1, code, stderr)
		require.Empty(t, stdout)
		require.Equal(t, "flashvk: "+data+wrong.want, oneError(t, stderr))
		require.NoFileExists(t, model)
	}
}

// TestTogetherTrain says that the second of two trainings with one log ends with an error, and that
// the first loses no row.
func TestTogetherTrain(t *testing.T) {
	_, dev := device(t)
	log := filepath.Join(t.TempDir(), "log.csv")
	first := prepare(t, "train", dev, "--dtype=float32", "--steps=100000", "--csv", log).start()
	first.until(func() bool { info, err := os.Stat(log); return err == nil && info.Size() > 0 })
	code, stdout, stderr := flashvk(t, "train", dev, "--dtype=float32", "--steps=3", "--csv", log)
	require.Equal(t, 1, code)
	require.Empty(t, stdout)
	require.Equal(t, "flashvk: "+log+": another process is writing it: name another file, or wait", oneError(t, stderr))
	interrupt(t, first, os.Interrupt)
	rows, err := os.ReadFile(log)
	require.NoError(t, err)
	for i, line := range strings.Split(strings.TrimSpace(string(rows)), "\n")[1:] {
		require.True(t, strings.HasPrefix(line, strconv.Itoa(i+1)+","), line)
	}
}
